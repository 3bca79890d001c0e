"""Whether a process still goes on: stopped, gone and idle ones do not."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

_PROC = Path("/proc")
_STOPPED, _GONE = "T", "ZXx"  # states of /proc; "t" is a debugger's, who knows
# Fields behind the name of the program.
_STATE, _TIMES, _STARTED = 0, slice(11, 13), 19

_LOST = "has been gone"
_HELD = "has been stopped (SIGSTOP)"
_IDLE = "has had a task and has computed nothing"


@dataclass(frozen=True)
class LivenessLimits:
    """For how many seconds a process may be like that before it is given up.

    `interval` are the seconds between two looks, `exit` those that a process has to
    end when it is told to.
    """

    stopped: float = 5.0
    idle: float = 600.0
    interval: float = 1.0
    exit: float = 5.0


class Sight(NamedTuple):
    """What the system says of a process.

    `ticks` are those of the CPU, for it and its children; `started`, its first moment,
    tells it from a later process of the same number.
    """

    state: str
    ticks: int
    started: int

    @property
    def is_gone(self) -> bool:
        """Whether it has ended, and nobody has asked how."""
        return self.state in _GONE


def look(process: int) -> Sight | None:
    """Return how a process is now; None if there is none (or no ``/proc``)."""
    try:
        text = (_PROC / str(process) / "stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    own = sum(int(field) for field in fields[_TIMES])
    children = (look(child) for child in _children(process))
    ticks = own + sum(child.ticks for child in children if child is not None)
    return Sight(fields[_STATE], ticks, int(fields[_STARTED]))


class Watch:
    """Looks at one process again and again.

    One that computes, or has nothing to do, is well. A long task that holds Python's
    lock computes; so does one whose child processes do. The times are between looks.
    Two looks alone, however far apart, make no process idle: the whole machine, or all
    that a terminal has started (Ctrl-Z), may have been stopped between them.
    """

    def __init__(
        self, limits: LivenessLimits, timer: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._timer = timer
        self._ticks = -1
        self._trouble = ""
        self._seconds = 0.0
        self._last_look = 0.0

    def verdict(self, process: int, *, has_work: bool) -> str:
        """Return why the process is given up, as in "it was stopped"; "" if it is not.

        Without ``/proc`` it never is.
        """
        sight = look(process)
        trouble = self._trouble_of(sight, has_work) if _PROC.is_dir() else ""
        self._ticks = -1 if sight is None else sight.ticks
        limit = self._limits.idle if trouble == _IDLE else self._limits.stopped
        now = self._timer()
        gap = now - self._last_look
        if trouble == _IDLE:
            gap = min(gap, limit / 2)
        self._seconds = self._seconds + gap if trouble == self._trouble else 0.0
        self._trouble, self._last_look = trouble, now
        is_over = trouble and self._seconds >= limit
        return f"{trouble} for {self._seconds:.0f} s" if is_over else ""

    def _trouble_of(self, sight: Sight | None, has_work: bool) -> str:
        if sight is None or sight.is_gone:
            return _LOST
        if sight.state == _STOPPED:
            return _HELD
        return _IDLE if has_work and sight.ticks == self._ticks else ""


def _children(process: int) -> Iterator[int]:
    for path in (_PROC / str(process) / "task").glob("*/children"):
        try:
            yield from map(int, path.read_text().split())
        except OSError:  # the thread has ended by now
            continue
