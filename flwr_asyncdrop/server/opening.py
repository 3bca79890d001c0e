"""Putting a run together on the nodes that are connected."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import OUTLIER_FACTOR, Aggregator, OutlierGuard
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, checked_profiles
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.coder import model_sizes
from flwr_asyncdrop.server.dispatch import Dispatcher, DispatchRules
from flwr_asyncdrop.server.merging import extra_of
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict

logger = logging.getLogger("flwr.asyncdrop")

FleetBuilder = Callable[[int], Iterable[DeviceProfile]]
"""Profiles of a simulated fleet from its number of devices, fastest first."""


def size_at_start(
    node_ids: Sequence[int], in_flight: int, saved: StateDict | None
) -> tuple[int, int]:
    """Return how many devices a run began with, and how many of them in flight.

    `saved` is the `state_dict` of the run that this one resumes, None for a new one.
    """
    if saved is not None:
        return len(saved["fleet"]["node_ids"]), saved["updates_per_round"]
    return len(node_ids), min(in_flight, len(node_ids))


def open_run(
    state: RunState,
    node_ids: Sequence[int],
    rules: DispatchRules,
    *,
    in_flight: int,
    build_aggregator: Callable[[int], Aggregator],
    build_fleet: FleetBuilder | None = None,
    averaging: float = 0.0,
    max_examples: int = wire.MAX_EXAMPLES,
    outlier_factor: float = OUTLIER_FACTOR,
    saved: StateDict | None = None,
) -> Run:
    """Put a run together on the nodes that are connected.

    `build_aggregator` gets the number of devices that can be in flight.
    `outlier_factor` is that of an `OutlierGuard`; 0 for none. `saved` is the
    `state_dict` of the run that this one resumes: it gives the size, and is loaded with
    `load_state_dict`. ConfigError if the aggregator waits for too many updates, or if a
    queue is not possible.
    """
    size, possible = size_at_start(node_ids, in_flight, saved)
    profiles = None
    if build_fleet is not None:
        profiles = checked_profiles(build_fleet(size), size)
    # A simulated fleet keeps its devices; on a real one others may join.
    slots = in_flight if profiles is None else possible
    slots, aggregator = _aggregator_for(slots, possible, build_aggregator)
    if rules.queue_ahead and (profiles is not None or aggregator.waits_for > 1):
        raise ConfigError(
            f"queue_ahead={rules.queue_ahead}: only real devices have a queue, and "
            "only if they do not wait for each other: set waits=False, or "
            "queue_ahead=0"
        )
    # A coded change means nothing without what it was made from.
    if aggregator.needs_base or (rules.codec and rules.codec.is_lossy):
        rules = replace(rules, keeps_base=True)
    fleet = Fleet(slots, profiles, model_sizes(rules.codec, state.arrays))
    fleet.refresh(node_ids)
    state.num_devices = len(fleet)
    state.joules = 0.0 if fleet.devices.counts_energy else None
    # A real run that resumes may have more nodes, or fewer, than it began with.
    there = len(node_ids) if profiles is None else size
    if there < in_flight:
        logger.warning(
            "%s for %d tasks in flight: only %d will train at any moment. "
            "Simulate more with --federation-config 'num-supernodes=104', start "
            "more SuperNodes, or lower in-flight.",
            counted(there, "node"),
            in_flight,
            there,
        )
    dispatcher = Dispatcher(fleet, rules, partial(extra_of, aggregator))
    return Run(
        state,
        dispatcher,
        aggregator,
        slots=slots,
        updates_per_round=possible,
        averaging=averaging,
        max_examples=max_examples,
        guard=OutlierGuard(outlier_factor) if outlier_factor else None,
    )


def _aggregator_for(
    slots: int, possible: int, build: Callable[[int], Aggregator]
) -> tuple[int, Aggregator]:
    """Return how many can be in flight, and the aggregator for so many.

    That is `slots`, more than are `possible` with the nodes of now, unless all in
    flight wait for each other, which takes a fixed number of them. ConfigError if it
    waits for more.
    """
    aggregator = build(slots)
    if aggregator.waits_for >= slots > possible:
        slots, aggregator = possible, build(possible)
    if aggregator.waits_for > slots:
        raise ConfigError(
            f"the aggregator waits for {aggregator.waits_for} updates, more than "
            f"the {counted(slots, 'device')} in flight, which would wait for ever: put "
            "more devices in flight, or let it wait for fewer"
        )
    return slots, aggregator
