"""What a run says of itself, and how it ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from flwr_asyncdrop.readable import headline
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import RunState


@dataclass(frozen=True)
class RunProgress:
    """Updates merged, seconds on the run's clock, last metric and tasks lost."""

    updates: int = 0
    time: float = 0.0
    metric: tuple[str, float] | None = None
    lost: int = 0

    def __str__(self) -> str:
        parts = [f"t {self.time:,.0f} s"]
        if self.metric is not None:
            parts.append(f"{self.metric[0]} {self.metric[1]:.3f}")
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


Said = RunProgress | Waiting | Failed | Skipped
"""What a process says of the run that it does."""

Event = Started | RunProgress | Waiting | Ended | Failed | Skipped


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
        self._last = -inf
        self._metric: tuple[str, float] | None = None

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Say it, if it is time."""
        now = self._timer()
        if now - self._last >= self._seconds:
            self._last = now
            self._say(self._progress(state))

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Keep the metric."""
        if evaluation.metrics:
            self._metric = headline(evaluation.metrics)

    def on_end(self, state: RunState) -> None:
        """Say it for the last time."""
        self._say(self._progress(state))

    def _progress(self, state: RunState) -> RunProgress:
        lost = sum(state.failures.values())
        return RunProgress(state.updates, state.time, self._metric, lost)
