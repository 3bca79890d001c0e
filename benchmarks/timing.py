"""Timing several actions side by side."""

import statistics
import time
from collections.abc import Callable, Mapping

__all__ = ["interleaved"]


def interleaved(
    actions: Mapping[str, Callable[[], object]], repeats: int
) -> dict[str, float]:
    """Return the median seconds of each action, run in turn after a warm-up.

    In turn, so that whatever else the machine does falls on all of them alike.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(repeats):
        for name, action in actions.items():
            started = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(times) for name, times in seconds.items()}
