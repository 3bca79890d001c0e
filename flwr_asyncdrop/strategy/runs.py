"""The runs that the arguments of a strategy describe, new and resumed."""

import logging
from collections.abc import Sequence
from functools import partial

from flwr.app import DEFAULT_TTL, ArrayRecord

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.checkpoint import Checkpoint
from flwr_asyncdrop.completeness.unsaved import Unsaved
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.flower_internals.ray_address import missing_cluster, remedy
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.server.dispatch import DispatchRules
from flwr_asyncdrop.server.opening import open_run, size_at_start
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.schedule import Schedule
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.train_settings import TrainConfig, TrainSettings
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.strategy.arguments import Arguments
from flwr_asyncdrop.strategy.calls import check_call
from flwr_asyncdrop.strategy.copies import copied
from flwr_asyncdrop.strategy.initial import (
    check_averaged,
    check_mergeable,
    read_initial,
)
from flwr_asyncdrop.strategy.record_keys import record_keys
from flwr_asyncdrop.strategy.resuming import (
    constant_parts,
    new_parts,
    run_arguments,
)
from flwr_asyncdrop.strategy.sampling import Sampling
from flwr_asyncdrop.strategy.start import Connection, StartArguments
from flwr_asyncdrop.strategy.train_configs import TrainConfigs
from flwr_asyncdrop.strategy.units import first_costs

logger = logging.getLogger("flwr.asyncdrop")


def new_run(
    given: Arguments,
    node_ids: Sequence[int],
    arrays: ArrayRecord,
    config: TrainConfig,
    timeout: float,
    *,
    in_flight: int,
    queue_ahead: int,
    saved: StateDict | None = None,
    resends: bool = False,
) -> Run:
    """Return a run on these nodes, as the arguments are now.

    With `resends` tasks may be sent again, so simulated devices' models are kept; so
    they are in any run that is saved. A run that is `saved` has the size of that one.
    """
    initial = read_initial(arrays, given.plan, given.trainable.model)
    state = RunState.start_from(initial, given.seed, given.trainable.frozen(initial))
    codec, algorithm = given.codec, given.algorithm
    check_mergeable(state.arrays, codec.label if codec and codec.is_lossy else "")
    if given.aggregator is None and type(algorithm) in ALGORITHMS.values():
        check_averaged(state.arrays)
    simulated = given.fleet is not None
    resends = resends or bool(given.checkpointer or state.frozen.tensors)
    devices, ranks = size_at_start(node_ids, in_flight, saved)
    settings = TrainSettings(
        config=config,
        schedule=_schedule(given, state, ranks, devices),
        keys=record_keys(given),
        ttl=max(timeout, DEFAULT_TTL) if simulated else timeout,
    )
    run = open_run(
        state,
        node_ids,
        DispatchRules(
            copied("selection", given.selection),
            given.assignment.with_masks(copied("masks", given.assignment.masks)),
            settings,
            given.faults,
            queue_ahead,
            keeps_base=simulated and resends,
            codec=codec,
            brings_frozen=simulated and not given.devices_have_frozen,
            work=copied("work", given.work),
        ),
        in_flight=in_flight,
        build_aggregator=given.build_aggregator,
        build_fleet=given.fleet,
        averaging=algorithm.averaging if algorithm else 0.0,
        max_examples=given.max_examples,
        outlier_factor=given.outlier_factor,
        saved=saved,
    )
    if given.checkpointer is not None:
        run.arguments = run_arguments(given, run)
        parts = {**run.parts, **constant_parts(given)}
        unsaved = Unsaved(parts, partial(new_parts, given, run.slots))
        run.find_unsaved = unsaved.find
    return run


def run_on(
    given: Arguments,
    connection: Connection,
    start: StartArguments,
    configs: TrainConfigs,
    checkpoint: Checkpoint | None,
) -> Run:
    """Wait for the nodes of a connection, and return the run that starts there."""
    saved = checkpoint.parts["run"] if checkpoint else None
    # A simulated fleet keeps its size.
    keeps = checkpoint.devices if checkpoint and given.fleet is not None else 0
    sampling = Sampling.of(given)
    needed, least = sampling.needed
    fix = f"lower {least}"
    if keeps > needed:
        needed, fix = keeps, "as many as the run that is resumed had"
    node_ids = connection.nodes.wait_for(needed, start.timeout, fix)
    if connection.grid.has_ray_workers:
        _warn_of_missing_cluster()
    in_flight = sampling.training(len(node_ids))
    if saved is not None and given.in_flight is None:
        # A share is one of the nodes that were there at the start.
        in_flight = saved["updates_per_round"]
    run = new_run(
        given,
        node_ids,
        start.initial_arrays,
        configs,
        start.timeout,
        in_flight=in_flight,
        queue_ahead=given.queue_ahead,
        saved=saved,
        resends=connection.grid.has_ray_workers,
    )
    run.client_state = lambda: connection.grid.client_state
    return run


def _warn_of_missing_cluster() -> None:
    address, source = missing_cluster()
    if address:
        logger.warning(
            "Ray joins the cluster at %s, which %s names, and nobody answers there, so "
            "nothing is trained: %s",
            shown(address),
            printable(source),
            printable(remedy(source)),
        )


def _schedule(
    given: Arguments, state: RunState, num_ranks: int, num_devices: int
) -> Schedule:
    """Return the schedule that is given, or ask the function for it that is."""
    if not callable(given.schedule):
        return given.schedule
    typical = None if given.codec is None else given.codec.typical
    costs = first_costs(given.assignment, state, num_ranks, typical)
    told = "the costs of the first tasks and the number of devices"
    check_call("schedule", given.schedule, "costs, num_devices", told)
    schedule = given.schedule(costs, num_devices)
    if not hasattr(schedule, "factor"):
        raise ConfigError(
            f"schedule(...) returned {printable(shown(schedule))}: a function is "
            "asked once, with the costs of the first tasks, for a Schedule"
        )
    return schedule
