"""What a run says of itself, and how it ends."""

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from flwr_asyncdrop.observers.speed_groups import speed_group
from flwr_asyncdrop.readable import headline, metric_text, with_decimals
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

_MOST_GROUPS = 4
_MOST_POINTS = 16


@dataclass(frozen=True)
class Preparing:
    """What the run does before its first task, e.g. ``"reading the data"``."""

    stage: str


@dataclass(frozen=True)
class RunProgress:
    """How far a run is.

    Updates merged, seconds on the run's clock, last metric and tasks lost; the metric
    over the run, thinned; how many devices of each speed group have a task, the fastest
    first; and the bytes that were sent and received.
    """

    updates: int = 0
    time: float = 0.0
    metric: tuple[str, float] | None = None
    lost: int = 0
    curve: tuple[float, ...] = ()
    in_flight: tuple[int, ...] = ()
    num_bytes: int = 0

    def __str__(self) -> str:
        parts = [f"t {with_decimals(self.time, 0)} s"]
        if self.metric is not None:
            parts.append(f"{self.metric[0]} {metric_text(*self.metric)}")
        if self.lost:
            parts.append(f"{self.lost} lost")
        return ", ".join(parts)


@dataclass(frozen=True)
class Started:
    """A process has taken the run."""


@dataclass(frozen=True)
class Waiting:
    """The run cannot write its files, for a reason of one line, and tries again."""

    reason: str


@dataclass(frozen=True)
class Warned:
    """The run warns of something, which its log has, too.

    `kind` is what all warnings of its kind have in common.
    """

    kind: str
    text: str


@dataclass(frozen=True)
class Ended:
    """The run has ended well, with its last progress."""

    progress: RunProgress


@dataclass(frozen=True)
class Failed:
    """The run has failed, for a reason of one line; its log has all of it."""

    reason: str


@dataclass(frozen=True)
class Skipped:
    """Somebody else has the run: `holder` says in words who."""

    holder: str


@dataclass(frozen=True)
class Done:
    """The run has done all that it had to; a process may exit with 0 before that."""


Said = Preparing | RunProgress | Waiting | Warned | Failed | Skipped | Done
"""What a process says of the run that it does."""

Event = Started | Preparing | RunProgress | Waiting | Warned | Failed | Skipped | Ended


class Reporter(Callback):
    """Says how far the run is: every `seconds` at most, and at the end."""

    def __init__(
        self,
        say: Callable[[RunProgress], None],
        *,
        seconds: float = 0.2,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._seconds = seconds
        self._timer = timer
        self._last = -math.inf
        self._metric: tuple[str, float] | None = None
        self._values: list[float] = []
        self._in_flight = Counter[int]()
        self._groups = 0

    def on_start(self, state: RunState) -> None:
        """Say that it has begun, which may be with the tasks of an earlier process."""
        for order in state.in_flight.values():
            self.on_dispatch(state, order)
        self._say(self._progress(state))

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Count the task for the speed group of its device."""
        self._groups = min(order.num_ranks, _MOST_GROUPS)
        self._in_flight[speed_group(order, _MOST_GROUPS)] += 1

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Say it, if it is time."""
        now = self._timer()
        if now - self._last >= self._seconds:
            self._last = now
            self._say(self._progress(state))
        # After that: the slot is taken again before anybody could look.
        self._in_flight[speed_group(merged.order, _MOST_GROUPS)] -= 1

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Count the task no more."""
        self._in_flight[speed_group(order, _MOST_GROUPS)] -= 1

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Keep the metric."""
        found = headline(evaluation.metrics) if evaluation.metrics else None
        if found is not None:
            if self._metric is not None and self._metric[0] != found[0]:
                self._values.clear()
            self._metric = found
            self._values.append(found[1])

    def on_end(self, state: RunState) -> None:
        """Say it for the last time."""
        self._say(self._progress(state))

    def _progress(self, state: RunState) -> RunProgress:
        return RunProgress(
            state.updates,
            state.time,
            self._metric,
            sum(state.failures.values()),
            thinned(self._values),
            tuple(self._in_flight[group] for group in range(self._groups)),
            state.bytes_down + state.bytes_up,
        )


def thinned(values: Sequence[float]) -> tuple[float, ...]:
    """Return some of the values, evenly spread, the last one among them."""
    step = max(math.ceil(len(values) / _MOST_POINTS), 1)
    return tuple(values[::-step][::-1])
