"""Flower strategies that merge on arrival."""

import logging
import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import asdict
from inspect import signature
from typing import Any, ClassVar, Literal

from flwr.app import DEFAULT_TTL, ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Aggregator
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.selection import Selection, Stratified
from flwr_asyncdrop.flower_internals.metrics import aggregate_metricrecords
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.objectives import LocalObjective
from flwr_asyncdrop.observers.progress import ProgressLog
from flwr_asyncdrop.observers.results import MetricsFn, ResultCollector
from flwr_asyncdrop.observers.rounds import RoundLog
from flwr_asyncdrop.observers.unchanged import UnchangedReplies
from flwr_asyncdrop.parameters import Range, at_least
from flwr_asyncdrop.server.assignment import DurationRule
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.dispatch import DispatchRules
from flwr_asyncdrop.server.evaluation import EvaluateFn, Evaluator
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.run import FleetBuilder, Run
from flwr_asyncdrop.server.schedule import Schedule, ScheduleBuilder, StepDecay
from flwr_asyncdrop.server.signals import Signals
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.stopping import StoppingRule
from flwr_asyncdrop.server.train_settings import TrainConfig, TrainSettings
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.strategy.arguments import choose_algorithm
from flwr_asyncdrop.strategy.legacy import check_no_legacy
from flwr_asyncdrop.strategy.start import assemble
from flwr_asyncdrop.strategy.synchronous import SynchronousRounds
from flwr_asyncdrop.strategy.train_configs import Config, TrainConfigs
from flwr_asyncdrop.strategy.units import build_assignment, first_costs
from flwr_asyncdrop.submodel import Inputs, Plan, Scope, State, examples_of

logger = logging.getLogger("flwr.asyncdrop")

_POSITIVE = Range(lambda v: v > 0, "more than 0")
_MANY = 2**20  # devices in flight, while nobody knows how many nodes there will be


class AsyncStrategy(SynchronousRounds):
    """A Flower strategy that merges each result on arrival.

    It takes the place of ``FedAvg`` in a ServerApp, whose arguments mean what they mean
    there. A round is as many updates as devices are in flight, so that results compare
    with those of a synchronous strategy round by round.

    An `algorithm` says how updates are merged, what submodels leave out and what
    clients minimise. Each of the three can be given alone, or in place of the
    algorithm's: ``AsyncStrategy(net, x, aggregator=Mixing(), masks=RandomMask(0.25))``.

    Parameters
    ----------
    model : nn.Module, optional
        The model whose submodels are trained; needed if units are dropped and there
        is no `plan`. Only its structure is used: the weights come with `start`.
    example_inputs : Tensor, tuple, mapping, or list of these, optional
        Inputs that the model runs on, e.g. ``torch.zeros(1, 3, 32, 32)``: as
        `plan_submodels` takes them.
    example_kwargs : mapping, optional
        Keyword arguments of every forward pass on them.
    algorithm : Algorithm, optional
        One of `flwr_asyncdrop.algorithms`, or your own.
    aggregator : Aggregator, optional
        How updates are merged. Every run begins with a copy of it.
    masks : MaskPolicy, optional
        Which units a device's submodel keeps. Every run begins with a copy of it.
    objective : LocalObjective, optional
        What clients minimise; what its `config` returns goes into the train config.
    scope : {"all", "internal", "stream"}
        ``"internal"`` drops only units that are made and consumed inside a block, as
        the paper does; ``"all"`` also those of residual streams; ``"stream"`` even of
        those under LayerNorm or RMSNorm, see `plan_submodels`.
    mode : {"sliced", "masked"}
        ``"sliced"`` sends tensors that are really smaller; ``"masked"`` sends
        full-size ones with the dropped units zeroed, for clients of any framework
        that must stay as they are.
    plan : Plan, optional
        The units of the model, e.g. from `declare_plan`, instead of discovering them.
    in_flight : int, optional
        Devices that train at any moment; in place of `fraction_train`.
    fleet : callable, optional
        Builds the profiles of a simulated fleet from the number of nodes, e.g.
        `speed_levels`. The run then has a virtual clock and depends on the seed alone.
        Without it devices and clock are real.
    duration : {"flops", "paper"}
        What a simulated device computes of the full model's work: a submodel's share
        of the FLOPs, or of the units (``1 - drop rate``), as in the paper's tables.
    selection : Selection, optional
        Chooses the next device; `Stratified` by default.
    schedule : Schedule or callable
        Schedule of ``train_config["lr"]``, advanced by the fastest device alone; or a
        function from the costs of the first tasks to one.
    faults : FaultPolicy
        How long tasks may take, what becomes of late replies, and how often a device
        may fail in a row.
    probe : bool
        Whether real devices are measured before their first task; their ClientApp
        needs a `CapacityMod`.
    queue_ahead : int
        Tasks that a real device gets beside the one that it trains, if all devices
        are in flight: less idle time, more staleness.
    seed : int
        Random seed.
    max_seconds : float
        Seconds on the run's clock after which it ends, if it has not ended before.
    fraction_train : float, optional
        Share of the nodes at the start that train at any moment, 1 by default.
    min_train_nodes : int, optional
        So many train at the least, 2 by default; the run waits for them.
    min_available_nodes : int
        Nodes to wait for before the run starts.
    fraction_evaluate : float
        Share of the nodes that evaluate the global model after every round, on their
        own data; 0 for none.
    min_evaluate_nodes : int, optional
        So many evaluate at the least, 2 by default.
    evaluate_every : int
        Rounds from one evaluation to the next.
    weighted_by_key : str
        Key, in the ``MetricRecord`` of a reply, of the number of examples.
    arrayrecord_key, configrecord_key : str
        Keys of the ``ArrayRecord`` and the ``ConfigRecord`` in a message.
    max_examples : int
        Most examples that a client can claim; a reply that claims more is refused.
    train_metrics_aggr_fn, evaluate_metrics_aggr_fn : callable, optional
        Flower's ``(list of RecordDict, weighting key) -> MetricRecord``; its weighted
        mean by default.
    evaluators : sequence of Evaluator
        Who else evaluates the global model, beside ``evaluate_fn`` and the clients.
    callbacks : sequence of Callback
        Called at every event of the run.
    checkpointer : Checkpointer, optional
        When and where a run is saved, and what it resumes. With it, Ctrl-C and
        SIGTERM save the run before they end it.
    log_rounds : bool
        Whether the log has the metrics of each round, and all of them at the end.
    **hyperparameters
        The fields of `algorithm_type`, e.g. ``drop_rate=0.5``, for strategies that
        are named after an algorithm.
    """

    algorithm_type: ClassVar[type[Algorithm] | None] = None
    """The algorithm of a named strategy."""

    def __init__(
        self,
        model: nn.Module | None = None,
        example_inputs: Inputs | None = None,
        *,
        example_kwargs: Mapping[str, Any] | None = None,
        algorithm: Algorithm | None = None,
        aggregator: Aggregator | None = None,
        masks: MaskPolicy | None = None,
        objective: LocalObjective | None = None,
        scope: Scope = "all",
        mode: Literal["sliced", "masked"] = "sliced",
        plan: Plan | None = None,
        in_flight: int | None = None,
        fleet: FleetBuilder | None = None,
        duration: DurationRule = "flops",
        selection: Selection | None = None,
        schedule: Schedule | ScheduleBuilder = StepDecay(),  # noqa: B008  # frozen
        faults: FaultPolicy = FaultPolicy(),  # noqa: B008  # frozen
        probe: bool = False,
        queue_ahead: int = 0,
        seed: int = 0,
        max_seconds: float = math.inf,
        fraction_train: float | None = None,
        min_train_nodes: int | None = None,
        min_available_nodes: int = 2,
        fraction_evaluate: float = 1.0,
        min_evaluate_nodes: int | None = None,
        evaluate_every: int = 1,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        max_examples: int = wire.MAX_EXAMPLES,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        evaluators: Sequence[Evaluator] = (),
        callbacks: Sequence[Callback] = (),
        checkpointer: Checkpointer | None = None,
        log_rounds: bool = True,
        **hyperparameters: Any,
    ) -> None:
        self.in_flight = in_flight
        self.fraction_train = fraction_train
        self.min_train_nodes = min_train_nodes
        self.min_available_nodes = min_available_nodes
        self.fraction_evaluate = fraction_evaluate
        self.min_evaluate_nodes = min_evaluate_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        self.sampling.check()
        at_least(0).check("seed", seed)
        _POSITIVE.check("max_seconds", max_seconds)
        at_least(0).check("queue_ahead", queue_ahead)
        at_least(1).check("evaluate_every", evaluate_every)
        at_least(1).check("max_examples", max_examples)
        self.algorithm = choose_algorithm(
            type(self).__name__,
            self.algorithm_type,
            algorithm,
            hyperparameters,
            signature(AsyncStrategy).parameters,
        )
        self.aggregator = aggregator
        self.build_aggregator(in_flight or _MANY)
        self.objective = objective
        if example_inputs is not None:
            example_inputs = examples_of(example_inputs, example_kwargs)
        self.assignment, self.plan = build_assignment(
            type(self).__name__,
            masks or (self.algorithm.masks() if self.algorithm else None),
            "channels" if self.algorithm is None else self.algorithm.units,
            model,
            example_inputs,
            plan=plan,
            scope=scope,
            mode=mode,
            duration=duration,
        )
        self.fleet = fleet
        self.selection = selection or Stratified()
        self.schedule = schedule
        self.faults = faults
        self.probe = probe
        self.queue_ahead = queue_ahead
        self.seed = seed
        self.max_seconds = max_seconds
        self.evaluate_every = evaluate_every
        self.max_examples = max_examples
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_metrics_aggr_fn = (
            evaluate_metrics_aggr_fn or aggregate_metricrecords
        )
        self.evaluators = tuple(evaluators)
        self.callbacks = tuple(callbacks)
        self.checkpointer = checkpointer
        self.log_rounds = log_rounds

    def build_aggregator(self, in_flight: int) -> Aggregator:
        """Return a new aggregator for so many devices in flight."""
        if self.aggregator is not None:
            own = deepcopy(self.aggregator)
            return own if self.algorithm is None else self.algorithm.clipped(own)
        if self.algorithm is None:
            raise ConfigError(
                f"nothing says how {type(self).__name__} merges updates: pass an "
                "algorithm, or an aggregator"
            )
        return self.algorithm.clipped_aggregator(in_flight)

    def summary(self) -> None:
        """Log what this strategy does."""
        logger.info("\t├── Algorithm: %s, seed %d", self._label, self.seed)
        clock = "wall" if self.fleet is None else "virtual"
        flying = self.sampling.described()
        logger.info("\t├── In flight: %s, on the %s clock", flying, clock)
        if self.plan is None:
            logger.info("\t└── Every device trains the full model")
        else:
            groups, units = len(self.plan.groups), self.plan.num_units
            logger.info("\t└── Submodels: %d units in %d groups", units, groups)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Config = None,
        evaluate_config: Config = None,
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
        train_config : ConfigRecord or callable, optional
            Sent with every task, or a function of the round that returns it; ``"lr"``
            follows the schedule.
        evaluate_config : ConfigRecord or callable, optional
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
        ConfigError
            If a subclass overrides a hook in a way that cannot be followed.
        RunError
            If no node is there, or if every task fails.
        CheckpointError
            If the checkpoint to resume cannot be used.
        """
        at_least(1).check("num_rounds", num_rounds)
        check_no_legacy(self)
        logger.info("Starting %s:", type(self).__name__)
        self.summary()
        checkpoint = None
        if self.checkpointer is not None:
            checkpoint = self.checkpointer.load(self._settings(num_rounds))
        # A signal ends every wait for nodes and replies.
        signals = Signals()
        nodes = Nodes(grid, sleep=signals.sleep)
        mailbox = Mailbox(grid, check=signals.check, patiently=signals.at_once)
        # A simulated fleet keeps its size.
        keeps = checkpoint.devices if checkpoint and self.fleet is not None else 0
        node_ids = nodes.wait_for(max(self.sampling.needed, keeps), timeout)
        configs = TrainConfigs(train_config, self._objective_config())
        run = self._open(
            node_ids,
            initial_arrays,
            configs,
            timeout,
            saved=checkpoint.parts["run"] if checkpoint else None,
            in_flight=self.sampling.training(keeps or len(node_ids)),
        )
        stopping = StoppingRule(
            num_rounds,
            run.updates_per_round,
            run.slots,
            timeout,
            self.evaluate_every,
            self.max_seconds,
        )
        _log_amount(stopping)
        collector = ResultCollector(self.train_metrics_aggr_fn, self.keys.num_examples)
        hooks = self._round_hooks(configs, collector, grid, num_rounds)
        logs = [RoundLog(collector.result, num_rounds)] if self.log_rounds else []
        evaluators = self._evaluators(
            mailbox, grid, evaluate_fn, evaluate_config, timeout
        )
        loop = assemble(
            run,
            nodes,
            mailbox,
            stopping,
            evaluators=[*evaluators, *self.evaluators],
            callbacks=[
                collector,
                hooks,
                UnchangedReplies(),
                ProgressLog(stopping.num_updates),
                *logs,
                *self.callbacks,
            ],
            checkpointer=self.checkpointer,
            checkpoint=checkpoint,
            probes=self.probe,
        )
        self._run, self._hooks = run, hooks
        try:
            with nullcontext() if self.checkpointer is None else signals:
                loop.run()
        finally:
            self._run = self._hooks = None
        return collector.result

    def _open(
        self,
        node_ids: Sequence[int],
        arrays: ArrayRecord,
        config: TrainConfig,
        timeout: float,
        *,
        in_flight: int,
        saved: StateDict | None = None,
        queue_ahead: int | None = None,
    ) -> Run:
        initial = wire.from_record(arrays)
        simulated, algorithm = self.fleet is not None, self.algorithm
        settings = TrainSettings(
            config=config,
            schedule=self._schedule(initial, in_flight),
            keys=self.keys,
            ttl=max(timeout, DEFAULT_TTL) if simulated else timeout,
        )
        return Run.open(
            RunState.start_from(initial, self.seed),
            node_ids,
            DispatchRules(
                self.selection,
                self.assignment.with_masks(deepcopy(self.assignment.masks)),
                settings,
                self.faults,
                self.queue_ahead if queue_ahead is None else queue_ahead,
                keeps_base=self.checkpointer is not None and simulated,
            ),
            in_flight=in_flight,
            build_aggregator=self.build_aggregator,
            build_fleet=self.fleet,
            averaging=algorithm.averaging if algorithm else 0.0,
            max_examples=self.max_examples,
            saved=saved,
        )

    def _objective_config(self) -> Mapping[str, object]:
        objective = self.objective
        if objective is None and self.algorithm is not None:
            objective = self.algorithm.objective()
        return objective.config() if objective else {}

    def _schedule(self, initial: State, in_flight: int) -> Schedule:
        if not callable(self.schedule):
            return self.schedule
        costs = first_costs(self.assignment, initial, self.seed, in_flight)
        return self.schedule(costs)

    @property
    def _label(self) -> str:
        if self.algorithm is not None:
            return self.algorithm.label()
        return type(self.aggregator).__name__

    def _settings(self, num_rounds: int) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        hyper = {} if self.algorithm is None else asdict(self.algorithm)
        return {
            "algo": self._label,
            "num-rounds": num_rounds,
            "in-flight": self.sampling.described(),
            "seed": self.seed,
            **{name.replace("_", "-"): value for name, value in hyper.items()},
        }


def _log_amount(stopping: StoppingRule) -> None:
    logger.info(
        "%d rounds of %d updates: %d updates",
        stopping.num_rounds,
        stopping.updates_per_round,
        stopping.num_updates,
    )
