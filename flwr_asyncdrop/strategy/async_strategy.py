"""Flower strategies that merge on arrival."""

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import ClassVar, Literal

from flwr.app import DEFAULT_TTL, ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.algorithms.registry import algorithm
from flwr_asyncdrop.checkpoint import Checkpoints
from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.checkpoint.saving import Saving
from flwr_asyncdrop.fleet.faults import FaultPolicy, LatePolicy
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.fleet.selection import Selection, Stratified
from flwr_asyncdrop.flower_internals.metrics import aggregate_metricrecords
from flwr_asyncdrop.observers.metrics import MetricsFn
from flwr_asyncdrop.observers.progress import Progress
from flwr_asyncdrop.observers.results import ResultCollector
from flwr_asyncdrop.ranges import check_ranges
from flwr_asyncdrop.server.assignment import (
    Assignment,
    DurationRule,
    ExampleInputs,
    FullModels,
    MaskedModels,
    Submodels,
    compute_share,
)
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.evaluation import EvaluateFn
from flwr_asyncdrop.server.run import AggregatorBuilder, FleetBuilder, Run
from flwr_asyncdrop.server.schedule import StepDecay
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.server.train_settings import TrainSettings
from flwr_asyncdrop.strategy.start import Link, assemble
from flwr_asyncdrop.strategy.synchronous import SynchronousRounds
from flwr_asyncdrop.strategy.units import discover
from flwr_asyncdrop.submodel import Plan, State

logger = logging.getLogger("flwr.asyncdrop")


class AsyncStrategy(SynchronousRounds):
    """A Flower strategy that merges each result on arrival.

    It takes the place of ``FedAvg`` in a ServerApp. `start` has Flower's signature and
    returns Flower's ``Result``; a round is as many updates as devices are in flight, so
    that results compare with those of a synchronous strategy round by round.

    Parameters
    ----------
    model : nn.Module, optional
        The model whose submodels are trained; needed by every algorithm that drops
        units, unless there is a `plan`. Only its structure is used: the weights come
        with `start`.
    example_inputs : Tensor or tuple, optional
        Inputs that the model runs on, e.g. ``torch.zeros(1, 3, 32, 32)``.
    scope : {"all", "internal"}
        ``"internal"`` drops only units that are made and consumed inside a block, as
        the paper does; ``"all"`` also those of residual streams, which saves more.
    mode : {"sliced", "masked"}
        ``"sliced"`` sends tensors that are really smaller; ``"masked"`` sends
        full-size ones with the dropped units zeroed, for clients of any framework
        that must stay as they are.
    plan : Plan, optional
        The units of the model, e.g. from `declare_plan`, instead of discovering them.
    in_flight : int
        Devices that train at any moment.
    fleet : callable, optional
        Builds the profiles of a simulated fleet from the number of nodes, e.g.
        `speed_levels`. With it the run goes by a virtual clock and depends on the
        seed alone. Without it devices are real and the wall clock rules.
    duration : {"flops", "paper"}
        What a simulated device computes of the full model's work: a submodel's share
        of the FLOPs, or of the units (``1 - drop rate``), as in the paper's tables.
    selection : Selection, optional
        Chooses the next device; `Stratified` by default.
    schedule : StepDecay
        Schedule of ``train_config["lr"]``, advanced by the fastest device alone.
    deadline, late, quarantine_after : float, {"merge", "discount", "drop"}, int
        How long a task may take, what becomes of a reply that comes after it, and
        how often a device may fail in a row; see `FaultPolicy`.
    greet : bool
        Whether real devices are asked what they can do, before their first task;
        their ClientApp needs a `CapacityMod`.
    queue_ahead : int
        Tasks that a real device gets beside the one that it trains, if all devices
        are in flight: less idle time, more staleness.
    seed : int
        Seed of everything random.
    max_seconds : float
        Seconds on the run's clock after which it ends, if its last round does not
        come before.
    min_available_nodes : int
        Nodes to wait for before the run starts.
    fraction_evaluate : float
        Share of the nodes that evaluate the global model after every round, on their
        own data; 0, the default, for none.
    evaluate_every : int
        Rounds from one evaluation to the next.
    keys : RecordKeys
        Where the project keeps its records.
    max_examples : int
        Most examples that a client can claim; a reply that claims more is refused.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        Flower's ``(list of RecordDict, weighting key) -> MetricRecord``.
    callbacks : sequence of Callback
        Told of everything that happens.
    checkpoints : Checkpoints, optional
        When and where a run saves itself, and what it goes on from. With it, Ctrl-C
        and SIGTERM save the run before they do what they always do.
    **hyperparameters
        Those of `Hyperparameters` that the algorithm uses, e.g. ``drop_rate=0.5``.
    """

    algorithm: ClassVar[str]

    def __init__(
        self,
        model: nn.Module | None = None,
        example_inputs: ExampleInputs | None = None,
        *,
        scope: Literal["internal", "all"] = "all",
        mode: Literal["sliced", "masked"] = "sliced",
        plan: Plan | None = None,
        in_flight: int = 8,
        fleet: FleetBuilder | None = None,
        duration: DurationRule = "flops",
        selection: Selection | None = None,
        schedule: StepDecay = StepDecay(),  # noqa: B008  # frozen
        deadline: float = FaultPolicy.deadline,
        late: LatePolicy = FaultPolicy.late,
        quarantine_after: int = FaultPolicy.quarantine_after,
        greet: bool = False,
        queue_ahead: int = 0,
        seed: int = 0,
        max_seconds: float = math.inf,
        min_available_nodes: int = 2,
        fraction_evaluate: float = 0.0,
        evaluate_every: int = 1,
        keys: wire.RecordKeys = wire.RecordKeys(),  # noqa: B008  # frozen
        max_examples: int = wire.MAX_EXAMPLES,
        train_metrics_aggr_fn: MetricsFn = aggregate_metricrecords,
        evaluate_metrics_aggr_fn: MetricsFn = aggregate_metricrecords,
        callbacks: Sequence[Callback] = (),
        checkpoints: Checkpoints | None = None,
        **hyperparameters: float | str,
    ) -> None:
        is_share = 0 <= fraction_evaluate <= 1
        is_rule = duration in ("flops", "paper")
        is_some = min_available_nodes >= 1
        check_ranges(
            ("in_flight", in_flight, in_flight >= 1, "at least 1"),
            ("seed", seed, seed >= 0, "at least 0"),
            ("max_seconds", max_seconds, max_seconds > 0, "more than 0"),
            ("queue_ahead", queue_ahead, queue_ahead >= 0, "at least 0"),
            ("evaluate_every", evaluate_every, evaluate_every >= 1, "at least 1"),
            ("fraction_evaluate", fraction_evaluate, is_share, "in [0, 1]"),
            ("mode", mode, mode in ("sliced", "masked"), "'sliced' or 'masked'"),
            ("max_examples", max_examples, max_examples >= 1, "at least 1"),
            ("duration", duration, is_rule, "'flops' or 'paper'"),
            ("min_available_nodes", min_available_nodes, is_some, "at least 1"),
        )
        self.tolerance = FaultPolicy(deadline, late, quarantine_after)
        rules = algorithm(self.algorithm)
        hyper = rules.hyperparameters(self.algorithm, hyperparameters)
        self.build_aggregator: AggregatorBuilder = partial(
            rules.build_aggregator, hyper
        )
        self.build_aggregator(in_flight)
        self._hyperparameters = hyper
        self._local = rules.local(hyper)
        self._averaging = hyper.averaging or rules.averaging
        decays = 0 <= self._averaging < 1
        check_ranges(("averaging", self._averaging, decays, "in [0, 1)"))
        self.plan: Plan | None = None
        self._assignment: Assignment = FullModels()
        if rules.mask is not None:
            policy = rules.mask(hyper)
            if rules.units == "blocks":
                whole = "'all': blocks go as a whole"
                check_ranges(("scope", scope, scope == "all", whole))
            self.plan = plan or discover(
                type(self).__name__, rules.units, model, example_inputs, scope
            )
            if mode == "masked":
                self._assignment = MaskedModels(self.plan, policy)
            else:
                compute = compute_share(self.plan, model, example_inputs, duration)
                self._assignment = Submodels(self.plan, policy, compute)
        self.in_flight = in_flight
        self.fleet = fleet
        self.selection = selection or Stratified()
        self.schedule = schedule
        self.greet = greet
        self.queue_ahead = queue_ahead
        self.seed = seed
        self.max_seconds = max_seconds
        self.min_available_nodes = min_available_nodes
        self.fraction_evaluate = fraction_evaluate
        self.evaluate_every = evaluate_every
        self.keys = keys
        self.max_examples = max_examples
        self.train_metrics_aggr_fn = train_metrics_aggr_fn
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn
        self.callbacks = tuple(callbacks)
        self.checkpoints = checkpoints

    def summary(self) -> None:
        """Log what this strategy does."""
        logger.info("\t├── Algorithm: %s, seed %d", self.algorithm, self.seed)
        clock = "wall" if self.fleet is None else "virtual"
        logger.info("\t├── In flight: %d, by the %s clock", self.in_flight, clock)
        if self.plan is None:
            logger.info("\t└── Every device trains the full model")
        else:
            groups, units = len(self.plan.groups), self.plan.num_units
            logger.info("\t└── Submodels: %d units in %d groups", units, groups)

    def task_costs(self, initial: State) -> list[TaskCost]:
        """Return what the first task of each speed rank asks of its device.

        Parameters
        ----------
        initial : dict of str to Tensor
            The initial global model.
        """
        state = RunState.start_from(initial, self.seed)
        costs: list[TaskCost] = []
        for rank in range(self.in_flight):
            part = self._assignment.assign(state, rank, self.in_flight)
            size = sum(tensor.nbytes for tensor in part.arrays.values())
            costs.append(TaskCost(part.compute, size, size))
        return costs

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run to the end, merging each reply on arrival.

        Parameters
        ----------
        grid : Grid
            The way to the nodes.
        initial_arrays : ArrayRecord
            The initial global model.
        num_rounds : int
            Rounds to run; a round is as many updates as devices in flight.
        timeout : float
            Real seconds to wait for a reply at the most, and for a device when none
            is left; then the run ends with what it has.
        train_config : ConfigRecord, optional
            Sent with every task; ``"lr"`` follows the schedule.
        evaluate_config : ConfigRecord, optional
            Sent with every evaluation by clients.
        evaluate_fn : callable, optional
            ``(round, arrays) -> MetricRecord``; runs beside the loop, in a thread,
            before the first update and after every `evaluate_every` rounds.

        Returns
        -------
        Result
            The final model and the metrics by round.

        Raises
        ------
        RunError
            If no node is there, or if every task fails.
        CheckpointError
            If the run is to go on from a checkpoint that cannot be used.
        """
        check_ranges(("num_rounds", num_rounds, num_rounds >= 1, "at least 1"))
        logger.info("Starting %s:", type(self).__name__)
        self.summary()
        saving = Saving.open(self.checkpoints, self._told(num_rounds))
        link = Link.over(grid)
        node_ids = link.nodes.wait_for(self._nodes_needed(saving), timeout)
        session = self._open(node_ids, initial_arrays, train_config, timeout, saving)
        limits = StoppingRule(
            num_rounds,
            session.updates_per_round,
            session.slots,
            timeout,
            self.evaluate_every,
            self.max_seconds,
        )
        collector = ResultCollector(self.train_metrics_aggr_fn, self.keys.num_examples)
        loop = assemble(
            session,
            link,
            limits,
            evaluators=self._evaluators(
                link.mailbox, grid, evaluate_fn, evaluate_config, timeout
            ),
            callbacks=[collector, Progress(limits.num_updates), *self.callbacks],
            saving=saving,
            greets=self.greet,
        )
        try:
            with saving.guard(link.signals):
                loop.run()
        finally:
            self._session = None
        return collector.result

    def _open(
        self,
        node_ids: Sequence[int],
        arrays: ArrayRecord,
        config: ConfigRecord | None,
        timeout: float,
        saving: Saving = Saving(),  # noqa: B008  # frozen
    ) -> Run:
        """Put the run together on the nodes that are connected."""
        begun = RunState.start_from(wire.from_record(arrays), self.seed)
        self._session = Run.open(
            saving.state(begun),
            node_ids,
            in_flight=self.in_flight,
            build_fleet=self.fleet,
            selection=self.selection,
            assignment=self._assignment,
            build_aggregator=self.build_aggregator,
            averaging=self._averaging,
            max_examples=self.max_examples,
            tolerance=self.tolerance,
            keeps_base=self.checkpoints is not None and self.fleet is not None,
            memory=saving.session(),
            queue_ahead=self.queue_ahead,
            settings=TrainSettings(
                config={**(config or {}), **self._local},
                schedule=self.schedule,
                keys=self.keys,
                ttl=timeout if self.fleet is None else max(timeout, DEFAULT_TTL),
            ),
        )
        return self._session

    def _told(self, num_rounds: int) -> dict[str, Json]:
        """Return what a run is told, which must not change when it goes on."""
        hyper = asdict(self._hyperparameters)
        return {
            "algo": self.algorithm,
            "num-rounds": num_rounds,
            "in-flight": self.in_flight,
            "seed": self.seed,
            **{name.replace("_", "-"): value for name, value in hyper.items()},
        }

    def _nodes_needed(self, saving: Saving) -> int:
        """Return for how many nodes to wait: a simulated fleet keeps its size."""
        keeps = 0 if self.fleet is None else saving.devices
        return max(self.min_available_nodes, keeps)
