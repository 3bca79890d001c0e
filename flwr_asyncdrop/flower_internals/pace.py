"""How long Flower's loops pause: in proportion to what they have waited already.

Flower's SuperNode sleeps 3 s when there was no task, and 0.5 s when there was no reply
yet. Here a pause is a tenth of the wait so far, never shorter than a least pause and
never longer than Flower's own, or than the longest that the user allows between two
looks for a task. A task or a reply is found at most 10 % later than it was there (or
the least pause later). A task costs a few dozen more looks, however long it takes. A
device that is idle for half a minute is as quiet as Flower's.
"""

import time
from collections.abc import Callable

_SHARE = 0.1
_LEAST_FOR_REPLY = 0.02


class Pace:
    """The pauses of one wait, ever longer, from `least` seconds on."""

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
        """End the wait: what it was for has come."""
        self._since = None


class _Time:
    """The module ``time``, but for what a subclass replaces."""

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


class NodePace(_Time):
    """The ``time`` of a SuperNode, which waits for a task and for its reply in turn.

    `least` and `longest` are seconds between two looks for a task, which are requests
    to the SuperLink. None: Flower's own are the longest.
    """

    def __init__(
        self,
        least: float,
        task_came: Callable[[], None],
        *,
        longest: float | None = None,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._for_task = Pace(least, timer)
        self._for_reply = Pace(_LEAST_FOR_REPLY, timer)
        self._now = self._for_task
        self._longest = longest
        self._task_came = task_came
        self._sleep = sleep

    def sleep(self, seconds: float, /) -> None:
        """Pause as long as it should, where Flower pauses so many seconds."""
        if self._now is self._for_task and self._longest is not None:
            seconds = self._longest
        self._sleep(self._now.next(seconds))

    def looked(self, found: bool) -> None:
        """Take note of whether a look has found a task."""
        if found:
            self._for_task.end()
            self._for_reply.end()
            self._task_came()
        self._now = self._for_reply if found else self._for_task


class WokenPace(_Time):
    """The ``time`` of a SuperExec, whose pauses a `wait` for something to do ends."""

    def __init__(self, wait: Callable[[float], object]) -> None:
        self._wait = wait

    def sleep(self, seconds: float, /) -> None:
        """Pause until there is something to do, or for this time."""
        self._wait(seconds)
