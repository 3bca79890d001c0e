"""How long Flower's loops pause: in proportion to what they have waited already.

Flower's SuperNode sleeps 3 s when there was no task, and 0.5 s when there was no reply
yet. Here a pause is a tenth of the wait so far, never shorter than a least pause and
never longer than Flower's own. So a task or a reply is found at most 10 % later than
it was there (or the least pause later), a task costs a few dozen more looks however
long it takes, and a device that is idle for half a minute is as quiet as Flower's.
"""

import logging
import time
from collections.abc import Callable
from functools import wraps
from types import ModuleType

_SHARE = 0.1
_LEAST_FOR_REPLY = 0.02
_PULL = "_pull_and_store_message"


class _Time:
    """The module ``time``, but for what a subclass replaces."""

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


class Pace:
    """The pauses of one wait, ever longer.

    Parameters
    ----------
    least : float
        Seconds of the shortest pause.
    timer : callable, optional
        Source of monotonic seconds.
    """

    def __init__(
        self, least: float, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._least = least
        self._timer = timer
        self._since: float | None = None

    def next(self, longest: float) -> float:
        """Return the next pause in seconds; the first one begins the wait."""
        now = self._timer()
        if self._since is None:
            self._since = now
        return min(longest, max(self._least, _SHARE * (now - self._since)))

    def end(self) -> None:
        """End the wait, as what it was for has come."""
        self._since = None


class NodePace(_Time):
    """The pauses of a SuperNode, which waits for a task and for its reply in turn.

    Parameters
    ----------
    least : float
        Seconds of the shortest pause between two looks for a task, each of which is a
        request to the SuperLink.
    task_came : callable
        Called whenever a task has come.
    timer, sleep : callable, optional
        Source of monotonic seconds, and the pause; replaced in tests.
    """

    def __init__(
        self,
        least: float,
        task_came: Callable[[], None],
        *,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._for_task = Pace(least, timer)
        self._for_reply = Pace(_LEAST_FOR_REPLY, timer)
        self._now = self._for_task
        self._task_came = task_came
        self._sleep = sleep

    def sleep(self, seconds: float, /) -> None:
        """Pause as long as it should, and at most as long as Flower says."""
        self._sleep(self._now.next(seconds))

    def looked(self, found: bool) -> None:
        """Take note of whether a look has found a task."""
        if found:
            self._for_task.end()
            self._for_reply.end()
            self._task_came()
        self._now = self._for_reply if found else self._for_task


class WokenPace(_Time):
    """The pauses of a SuperExec: Flower's own, but it can be woken.

    Parameters
    ----------
    wait : callable
        Waits for so many seconds, or until there is something to do.
    """

    def __init__(self, wait: Callable[[float], object]) -> None:
        self._wait = wait

    def sleep(self, seconds: float, /) -> None:
        """Pause until there is something to do, or for this time."""
        self._wait(seconds)


def pace_node(module: ModuleType, pace: NodePace) -> bool:
    """Let the SuperNode's loop go at this pace.

    Parameters
    ----------
    module : module
        Flower's ``supernode.start_client_internal``.
    pace : NodePace
        Stands in for its ``time``, and is told what each look for a task has found.

    Returns
    -------
    bool
        Whether the module was as it is known to be; if not it is left alone.
    """
    look = getattr(module, _PULL, None)
    if not _pauses_by_time(module) or look is None:
        return False

    @wraps(look)
    def look_and_tell(*arguments: object, **named: object) -> object:
        run_id = look(*arguments, **named)
        pace.looked(run_id is not None)
        return run_id

    module.__dict__.update({"time": pace, _PULL: look_and_tell})
    return True


def pace_superexec(module: ModuleType, pace: WokenPace) -> bool:
    """Let the SuperExec's loop pause like this; return whether it is as it is known.

    Parameters
    ----------
    module : module
        Flower's ``supercore.superexec.run_superexec``.
    pace : WokenPace
        Stands in for its ``time``.
    """
    if not _pauses_by_time(module):
        return False
    module.__dict__["time"] = pace
    return True


def warn_of_plain_pace(module: str) -> None:
    """Say that a module of Flower is not as it is known to be."""
    logging.getLogger("flwr").warning(
        "%s of this Flower is not as expected, so it keeps its own pace", module
    )


def _pauses_by_time(module: ModuleType) -> bool:
    return getattr(module, "time", None) is time
