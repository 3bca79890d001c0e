"""The progress of a run in the log."""

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.observers.speed_groups import speed_group
from flwr_asyncdrop.readable import (
    counted,
    headline,
    metric_text,
    readable_bytes,
    readable_seconds,
    with_decimals,
)
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

# A child of Flower's logger: its lines come where Flower's come, streamed ones too.
logger = logging.getLogger("flwr.asyncdrop")

_DETAILED_FAILURES = 5
_MOST_GROUPS = 4
_LEAST_OF_A_SPEED = 2
_QUIET = 60.0


class ProgressLog(Callback):
    """Logs the progress of the run, and which tasks were lost.

    Time is on the run's clock, updates are per real second, the metric is the server's
    unless only others evaluate, and speed groups stand the fastest first::

        update 128/480 | t 512 s | accuracy 0.913 | 24 devices, 8 in flight, 1 late,
        2 in quarantine | 9 s left
            41 updates/s | staleness 5.2 (1.1 queued) | 12.3 MB down, 12.1 MB up | by
            speed group 43 36 30 19 | lost: 1 no-reply, 1 shape

    Two such pairs are at least `seconds` real seconds apart; the last one always
    comes. When nothing has come from a real fleet for a minute, and for twice as long
    each time, a line says for whom it waits. The run ends with `num_updates`, or after
    `max_seconds` on its clock; `timer` gives monotonic seconds.
    """

    def __init__(
        self,
        num_updates: int,
        max_seconds: float = math.inf,
        *,
        seconds: float = 2.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_updates = num_updates
        self.max_seconds = max_seconds
        self.seconds = seconds
        self._timer = timer
        self._start = timer()
        self._start_time = 0.0
        self._last_line = -math.inf
        self._heard = self._start
        self._quiet = _QUIET
        self._merged = 0
        self._staleness = 0
        self._queued = 0
        self._by_group: Counter[int] = Counter()
        self._in_flight = self._waiting = 0
        self._fleet: Fleet | None = None
        self._evaluation: Evaluation | None = None

    def on_fleet(self, fleet: Fleet) -> None:
        """Get to know the devices."""
        self._fleet = fleet

    def on_start(self, state: RunState) -> None:
        """Start the clock."""
        self._start = self._timer()
        self._start_time = state.time
        self._hear()

    def on_pause(self, state: RunState) -> None:
        """Log for whom a real fleet waits, if nothing has come for long."""
        quiet, out = self._timer() - self._heard, state.in_flight.values()
        if quiet < self._quiet or not (out and self._is_real):
            return
        first = min(out, key=lambda order: order.timing.dispatched_at)
        longest = state.time - first.timing.dispatched_at
        if longest < self._quiet:  # sent meanwhile, after answers to probes
            return
        self._quiet *= 2
        logger.info(
            "nothing has come for %s: %s out, the longest for %s, device %d%s",
            readable_seconds(quiet),
            counted(len(out), "task is", "tasks are"),
            readable_seconds(longest),
            first.device,
            self._node(first),
        )

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Count what is in flight, and waits, when the free slots are taken again."""
        self._count(state)

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Log lines if it is time for them."""
        self._hear()
        if state.updates + len(state.in_flight) >= self.num_updates:
            self._count(state)
        self._merged += 1
        self._staleness += merged.staleness
        self._queued += merged.queued
        self._by_group[speed_group(merged.order, _MOST_GROUPS)] += 1
        self._log_if_due(state)

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """Keep the metrics, and log lines if it is time for them."""
        self._hear()
        if not evaluation.metrics:
            return
        known = self._evaluation
        if known is None or evaluation.source in (known.source, "server"):
            self._evaluation = evaluation
        self._log_if_due(state)

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Warn of the first failures of a kind one by one, and count the others."""
        self._hear()
        count = state.failures[kind]
        if count <= _DETAILED_FAILURES:
            last = count == _DETAILED_FAILURES
            logger.warning(
                "device %d (rank %d%s) failed, its task is lost: %s%s",
                order.device,
                order.rank,
                self._node(order),
                reason,
                f" (from here on {kind!r} is only counted)" if last else "",
            )

    def on_end(self, state: RunState) -> None:
        """Log the last lines, and what was lost."""
        self._count(state)
        self._log(state)
        if state.failures:
            logger.warning("tasks lost: %s", _counts(state.failures))
        if state.duplicates:
            twice = counted(state.duplicates, "reply", "replies")
            logger.warning("%s came twice, merged once", twice)

    def _node(self, order: Order) -> str:
        """Return by which name ``flwr supernode list`` has a real device."""
        return f", node {order.node_id}" if self._is_real else ""

    @property
    def _is_real(self) -> bool:
        return self._fleet is not None and self._fleet.profiles is None

    def _hear(self) -> None:
        self._heard, self._quiet = self._timer(), _QUIET

    def _count(self, state: RunState) -> None:
        self._in_flight, self._waiting = len(state.in_flight), len(state.waiting)

    def _log_if_due(self, state: RunState) -> None:
        now = self._timer()
        if now - self._last_line >= self.seconds:
            self._last_line = now
            self._log(state)

    def _log(self, state: RunState) -> None:
        logger.info("%s", " | ".join(self._how_far(state)))
        logger.info("    %s", " | ".join(self._what_came(state)))

    def _how_far(self, state: RunState) -> Iterator[str]:
        width = len(str(self.num_updates))
        yield f"update {state.updates:>{width}}/{self.num_updates}"
        yield f"t {with_decimals(state.time, 0)} s"
        if self._evaluation is not None and self._evaluation.metrics is not None:
            metric = headline(self._evaluation.metrics)
            if metric is not None:
                yield f"{metric[0]} {metric_text(*metric)}"
        yield ", ".join(self._who_trains(state))
        if (left := self._left(state)) > 0:
            yield f"{readable_seconds(left)} left"

    def _left(self, state: RunState) -> float:
        """Return how many seconds the run goes on at its speed so far; 0 if unknown.

        The first update is no measure of it: most of its time an engine may have taken
        to start.
        """
        elapsed = self._timer() - self._start
        if self._merged < _LEAST_OF_A_SPEED or elapsed <= 0:
            return 0.0
        left = (self.num_updates - state.updates) * elapsed / self._merged
        passed = state.time - self._start_time
        if passed > 0:
            left = min(left, (self.max_seconds - state.time) * elapsed / passed)
        return left

    def _who_trains(self, state: RunState) -> Iterator[str]:
        if self._fleet is not None:
            yield counted(len(self._fleet.present), "device")
        yield f"{self._in_flight} in flight"
        if self._waiting:
            yield f"{self._waiting} waiting"
        if state.late:
            yield f"{len(state.late)} late"
        if self._fleet is not None:
            readiness = self._fleet.readiness
            for count, what in (
                (readiness.quarantined(state.time), "in quarantine"),
                (readiness.probing(state.time), "probed"),
                (len(readiness.too_small), "too small"),
            ):
                if count:
                    yield f"{count} {what}"

    def _what_came(self, state: RunState) -> Iterator[str]:
        elapsed = self._timer() - self._start
        if self._merged and elapsed > 0:
            rate = self._merged / elapsed
            digits = ".0f" if rate >= 10 else ".1f" if rate >= 1 else ".2g"
            yield f"{rate:{digits}} updates/s"
        if self._merged:
            queued = self._queued / self._merged
            of_which = f" ({queued:.1f} queued)" if queued else ""
            yield f"staleness {self._staleness / self._merged:.1f}{of_which}"
        down, up = readable_bytes(state.bytes_down), readable_bytes(state.bytes_up)
        yield f"{down} down, {up} up"
        if self._fleet is not None and self._fleet.num_ranks > 1:
            groups = range(min(self._fleet.num_ranks, _MOST_GROUPS))
            counts = " ".join(str(self._by_group[group]) for group in groups)
            yield f"by speed group {counts}"
        if state.failures:
            yield f"lost: {_counts(state.failures)}"


def _counts(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items())
