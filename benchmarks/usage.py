"""What this process and all that it has started use of the machine."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

__all__ = ["Usage", "cpu_seconds", "resident_bytes", "usage_of"]


@dataclass(frozen=True)
class Usage:
    """Time that something took.

    Attributes
    ----------
    wall : float
        Seconds that passed.
    cpu : float
        CPU seconds of this process and its descendants together.
    """

    wall: float
    cpu: float


def usage_of(action: Callable[[], object]) -> Usage:
    """Run `action`; processes that it started must have ended, or be children still."""
    wall, cpu = time.perf_counter(), _cpu_seconds()
    action()
    return Usage(time.perf_counter() - wall, _cpu_seconds() - cpu)


def resident_bytes() -> int:
    """Return the resident memory of this process and its descendants.

    Pages that two of them share count twice.
    """
    return sum(process.memory_info().rss for process in _family())


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of one process so far, without its children's."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _cpu_seconds() -> float:
    # A process's times go over to its parent's `children_*` when it has ended.
    return sum(sum(process.cpu_times()[:4]) for process in _family())


def _family() -> list[psutil.Process]:
    this = psutil.Process()
    return [this, *this.children(recursive=True)]
