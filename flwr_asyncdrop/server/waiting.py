"""Devices that wait for a step which does not come."""

import logging
import math

from flwr_asyncdrop.aggregation import Aggregator
from flwr_asyncdrop.server.callbacks import LOSSES
from flwr_asyncdrop.server.dispatch import Dispatcher
from flwr_asyncdrop.server.merging import in_parts, name_of
from flwr_asyncdrop.server.state import RunState

logger = logging.getLogger("flwr.asyncdrop")

GENERATIONS = 3
"""How often all tasks come back, without one that is lost, until a device starves."""


def lacks_updates(
    state: RunState, dispatcher: Dispatcher, aggregator: Aggregator, slots: int
) -> bool:
    """Return whether no device can send what a step lacks, or none has to."""
    fleet = dispatcher.fleet
    if len(state.waiting) >= slots:
        return True
    real = fleet.profiles is None
    # With some gone, or where only some are waited for, those that are there will do.
    if real and (aggregator.waits_for < slots or len(fleet.present) < slots):
        return True
    # A simulated device that lost tasks comes back; one whose replies fail will not do.
    failing = real or not state.failures.keys() <= LOSSES
    if failing and fleet.readiness.quarantined(state.time):
        return True
    # One without the memory for a task will never do.
    lacking = fleet.readiness.too_small & fleet.present
    return bool(lacking) and dispatcher.next_return(state) == math.inf


class StarvingWatch:
    """Says, once, that a device starves: steps are for others, whatever comes.

    So it is where an aggregator has devices wait for those of their own speed, and
    for more of them than ever train at once. Only the run shows that: whom a step is
    for is known when it is taken. A generation is over when all tasks have come back
    that were out at its beginning.
    """

    def __init__(self) -> None:
        self._order = -1  # the number of the one that has waited longest
        self._lost = 0
        self._begun = 0  # the first task of this generation
        self._over = 0
        self._said = False

    def look(self, state: RunState, aggregator: Aggregator) -> None:
        """Look at who waits after an update."""
        comes_by_time = aggregator.steps_at < math.inf  # that step is for all
        if self._said or not state.waiting or comes_by_time or not in_parts(aggregator):
            return
        longest, lost = state.waiting[0], sum(state.failures.values())
        if (longest.number, lost) != (self._order, self._lost):
            self._order, self._lost, self._over = longest.number, lost, 0
            self._begun = state.dispatched
            return
        out = (*state.in_flight.values(), *state.late.values())
        none_sent = state.dispatched == self._begun
        if none_sent or any(order.number < self._begun for order in out):
            return
        self._over, self._begun = self._over + 1, state.dispatched
        if self._over < GENERATIONS:
            return
        self._said = True
        logger.warning(
            "device %d (rank %d of %d) has waited for a step of %s since %.3g s, while "
            "all other tasks came back %d times: where devices wait for their like, "
            "each %d of them (waits_for) must train at once; wait for fewer, or put "
            "more in flight",
            longest.device,
            longest.rank,
            longest.num_ranks,
            name_of(aggregator),
            longest.timing.due,
            GENERATIONS,
            aggregator.waits_for,
        )
