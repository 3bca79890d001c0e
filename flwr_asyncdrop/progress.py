"""A line now and then while the run goes on."""

import logging
import time
from collections.abc import Callable, Mapping
from math import inf

from flwr_asyncdrop.readable import headline, readable_bytes
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import Order, ServerState

__all__ = ["Progress"]

# A child of Flower's logger: its lines come where Flower's come, streamed ones too.
logger = logging.getLogger("flwr.asyncdrop")

_DETAILED_FAILURES = 5


class Progress(Callback):
    """Logs how far the run is, and which tasks were lost.

    The line has updates, time on the run's clock, the last evaluation's headline
    metric (the server's, unless only clients evaluate), bytes, tasks in flight and
    late, mean staleness, updates per real second and lost tasks by kind::

        update  128/480 | t 512 s | accuracy 0.913 | 12.3 MB down, 12.1 MB up | 8 in
        flight, 1 late | staleness 5.2 | 41 updates/s | lost: 1 no-reply, 1 shape

    Parameters
    ----------
    num_updates : int
        Updates in the whole run.
    seconds : float
        Least real seconds between two lines; the last one always comes.
    timer : callable
        Source of monotonic seconds.
    """

    def __init__(
        self,
        num_updates: int,
        *,
        seconds: float = 2.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_updates = num_updates
        self.seconds = seconds
        self._timer = timer
        self._start = timer()
        self._last_line = -inf
        self._merged = 0
        self._staleness = 0
        self._in_flight = 0
        self._evaluation: Evaluation | None = None

    def on_start(self, state: ServerState) -> None:
        """Start the clock."""
        self._start = self._timer()

    def on_dispatch(self, state: ServerState, order: Order) -> None:
        """Count what is in flight when the free slots are taken again."""
        self._in_flight = len(state.in_flight)

    def on_update(self, state: ServerState, merged: Merged) -> None:
        """Log a line if it is time for one."""
        if state.updates + len(state.in_flight) >= self.num_updates:
            self._in_flight = len(state.in_flight)
        self._merged += 1
        self._staleness += merged.staleness
        self._log_if_due(state)

    def on_evaluation(self, state: ServerState, evaluation: Evaluation) -> None:
        """Keep the metrics, and log a line if it is time for one."""
        if not evaluation.metrics:
            return
        known = self._evaluation
        if known is None or evaluation.source in (known.source, "server"):
            self._evaluation = evaluation
        self._log_if_due(state)

    def on_failure(
        self, state: ServerState, order: Order, kind: str, reason: str
    ) -> None:
        """Warn of the first failures of a kind one by one, and count the others."""
        count = state.failures[kind]
        if count <= _DETAILED_FAILURES:
            last = count == _DETAILED_FAILURES
            logger.warning(
                "device %d (rank %d) failed, its task is lost: %s%s",
                order.device,
                order.rank,
                reason,
                f" (from here on {kind!r} is only counted)" if last else "",
            )

    def on_end(self, state: ServerState) -> None:
        """Log the last line, and what was lost."""
        self._in_flight = len(state.in_flight)
        logger.info("%s", self._line(state))
        if state.failures:
            logger.warning("tasks lost: %s", _counts(state.failures))
        if state.duplicates:
            logger.warning("%d replies came twice, merged once", state.duplicates)

    def _log_if_due(self, state: ServerState) -> None:
        now = self._timer()
        if now - self._last_line >= self.seconds:
            self._last_line = now
            logger.info("%s", self._line(state))

    def _line(self, state: ServerState) -> str:
        width = len(str(self.num_updates))
        parts = [
            f"update {state.updates:>{width}}/{self.num_updates}",
            f"t {state.time:.0f} s",
        ]
        if self._evaluation is not None and self._evaluation.metrics is not None:
            metric = headline(self._evaluation.metrics)
            if metric is not None:
                parts.append(f"{metric[0]} {metric[1]:.3f}")
        down, up = readable_bytes(state.bytes_down), readable_bytes(state.bytes_up)
        late = f", {len(state.late)} late" if state.late else ""
        parts += [f"{down} down, {up} up", f"{self._in_flight} in flight{late}"]
        if self._merged:
            parts.append(f"staleness {self._staleness / self._merged:.1f}")
        elapsed = self._timer() - self._start
        if self._merged and elapsed > 0:
            rate = self._merged / elapsed
            parts.append(f"{rate:.{0 if rate >= 10 else 1}f} updates/s")
        if state.failures:
            parts.append(f"lost: {_counts(state.failures)}")
        return " | ".join(parts)


def _counts(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items())
