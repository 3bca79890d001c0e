"""Whether what a run keeps in flight fits into this machine's memory."""

import logging
import math
from copy import deepcopy
from dataclasses import dataclass

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.machine_memory import Memory
from flwr_asyncdrop.readable import readable_bytes
from flwr_asyncdrop.server.run import Run

logger = logging.getLogger("flwr.asyncdrop")

# Beside what is in flight: a reply, and its change.
_AT_WORK = 2
# Submodels differ in size: what is needed at the least is a half of what is expected.
_SURELY = 0.5


@dataclass(frozen=True)
class Demand:
    """What a run keeps in flight, as far as that is known before it starts.

    `slots` devices in flight have `copies` of `size` bytes: the submodel of each, or
    the versions of the full model, of which every `each`-th update makes one. `others`
    of the same size are changes that are collected, and those at work. In a `steady`
    fleet all slots are taken from the start. Submodels that grow or shrink during the
    run have a `smallest` size too.
    """

    slots: int
    copies: int
    size: int
    each: int = 1
    others: int = _AT_WORK
    submodels: bool = False
    steady: bool = False
    smallest: int | None = None

    @property
    def expected(self) -> int:
        """Bytes, if all devices take about as long."""
        return (self.copies + self.others) * self.size

    @property
    def least(self) -> float:
        """Bytes that the run cannot do without.

        Of the full model it may be two versions: that depends on who replies when.
        """
        size = self.size if self.smallest is None else self.smallest
        if self.submodels and self.steady:
            return max(self.copies * _SURELY, 1) * size
        return min(self.copies, 2) * size

    def most_in_flight(self, free: int) -> int:
        """Return how many devices in flight fit into some bytes; 0 if none do."""
        left = free // max(self.size, 1) - self.others
        # The groups that are sent one version each begin anywhere in it.
        return max((left - (self.each > 1)) * self.each, 0)


def check_memory(
    run: Run, num_updates: int, *, holds_messages: bool, memory: Memory
) -> None:
    """Warn of a run that may not fit into memory; ConfigError if it cannot.

    `holds_messages` says that messages lie in this process, or on this machine, until
    they are answered. How many versions are in flight depends on who replies when:
    what is expected is compared with what is free, and only what is needed at the least
    with all that there is.
    """
    if not (holds_messages or run.dispatcher.rules.keeps_base):
        return
    most = _most(run, num_updates)
    if all(known is None or most <= known for known in (memory.free, memory.total)):
        return
    demand = demand_of(run, num_updates)
    if memory.total is not None and demand.least > memory.total:
        raise ConfigError(
            f"{_described(demand)}: that takes {readable_bytes(demand.least)} at the "
            f"least, and this machine has {readable_bytes(memory.total)}: "
            f"{_advice(demand, memory.total)}"
        )
    if memory.free is not None and demand.expected > memory.free:
        logger.warning(
            "memory may run out: %s, about %s with what is being merged, and %s are "
            "free: %s",
            _described(demand),
            readable_bytes(demand.expected),
            readable_bytes(memory.free),
            _advice(demand, memory.free),
        )


def demand_of(run: Run, num_updates: int) -> Demand:
    """Return what a run of so many updates keeps in flight."""
    rules, aggregator = run.dispatcher.rules, run.aggregator
    slots = min(run.slots, num_updates)
    others = _AT_WORK + min(aggregator.collects, num_updates)
    if rules.assignment.masks is not None:
        ranks = run.fleet.num_ranks
        # A policy may change with every task that it is asked for.
        assignment = rules.assignment.with_masks(deepcopy(rules.assignment.masks))
        # The slowest gets the smallest.
        sizes = [
            assignment.first_cost(
                run.state, ranks - 1, ranks, progress=progress
            ).bytes_down
            for progress in (0.0, 1.0)
        ]
        return Demand(
            slots,
            slots,
            max(sizes),
            others=others,
            submodels=True,
            steady=_is_steady(run),
            smallest=min(sizes),
        )
    size = sum(tensor.nbytes for tensor in run.state.arrays.values())
    each = aggregator.updates_per_version
    copies = most_versions(slots, each, num_updates)
    return Demand(slots, copies, size, each, others)


def _most(run: Run, num_updates: int) -> int:
    """Return what a run takes if every device in flight has a full model of its own.

    Where that fits nothing else is asked for: a mask policy may be somebody's own.
    """
    size = sum(tensor.nbytes for tensor in run.state.arrays.values())
    others = _AT_WORK + run.aggregator.collects
    return (min(run.slots, num_updates) + others) * size


def most_versions(in_flight: int, updates_each: int, num_updates: int) -> int:
    """Return how many versions of the model are in flight, if all take as long.

    A version is sent until the next `updates_each` updates have come.
    """
    reached = 1 + num_updates // updates_each
    return min(math.ceil(in_flight / updates_each) + 1, in_flight, reached)


def _is_steady(run: Run) -> bool:
    profiles = run.fleet.profiles
    return profiles is not None and not any(
        each.dropout or each.availability for each in profiles
    )


def _described(demand: Demand) -> str:
    size = readable_bytes(demand.size)
    if demand.submodels:
        return f"{demand.slots} devices in flight keep a submodel of {size} each"
    return (
        f"{demand.slots} devices in flight keep about {demand.copies} versions of a "
        f"model of {size}"
    )


def _advice(demand: Demand, free: int) -> str:
    fitting = demand.most_in_flight(free)
    if fitting < 1:
        return "not one device in flight fits: use a smaller model"
    return f"at most {fitting} devices in flight fit"
