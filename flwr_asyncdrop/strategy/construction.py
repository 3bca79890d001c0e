"""The arguments of a strategy, checked, and the runs that they describe."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from inspect import signature
from typing import Any, ClassVar, Literal

from flwr.app import DEFAULT_TTL, ArrayRecord
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import OUTLIER_FACTOR, OUTLIER_FACTORS, Aggregator
from flwr_asyncdrop.aggregation.aggregator import check_aggregator
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.codecs import CodecChoice, codec_choice
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.profiles import sha256_of
from flwr_asyncdrop.fleet.selection import Selection, Stratified
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.objectives import LocalObjective
from flwr_asyncdrop.observers.results import MetricsFn
from flwr_asyncdrop.overrides import check_no_fields, check_overrides
from flwr_asyncdrop.parameters import Range, whole_from
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.server.assignment import DurationRule
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.dispatch import DispatchRules
from flwr_asyncdrop.server.evaluation import Evaluator
from flwr_asyncdrop.server.opening import FleetBuilder, open_run
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.same_arguments import described
from flwr_asyncdrop.server.schedule import Schedule, ScheduleBuilder, StepDecay
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.server.train_settings import TrainConfig, TrainSettings
from flwr_asyncdrop.server.unsaved import Unsaved
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.strategy.arguments import choose_algorithm
from flwr_asyncdrop.strategy.copies import copied
from flwr_asyncdrop.strategy.ignored import refuse_ignored
from flwr_asyncdrop.strategy.initial import check_mergeable, read_initial
from flwr_asyncdrop.strategy.kinds import check_kinds
from flwr_asyncdrop.strategy.synchronous import SynchronousRounds
from flwr_asyncdrop.strategy.trained_part import TrainedPart
from flwr_asyncdrop.strategy.units import (
    build_assignment,
    check_model,
    first_costs,
    sha256_of_units,
)
from flwr_asyncdrop.strategy.weighted_mean import weighted_mean
from flwr_asyncdrop.submodel import Inputs, Plan, Scope, Trainable, examples_of
from flwr_asyncdrop.wire.codec import Codec

logger = logging.getLogger("flwr.asyncdrop")

_POSITIVE = Range(lambda v: v > 0, "more than 0")
_MANY = 2**20  # devices in flight, while nobody knows how many nodes there will be


class Arguments(SynchronousRounds):
    """Checks the arguments of `AsyncStrategy`, keeps them, and opens runs with them."""

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
        trainable: Trainable = None,
        in_flight: int | None = None,
        codec: str | Codec | CodecChoice | None = None,
        fleet: FleetBuilder | None = None,
        devices_have_frozen: bool = False,
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
        outlier_factor: float = OUTLIER_FACTOR,
        train_metrics_aggr_fn: MetricsFn | None = None,
        evaluate_metrics_aggr_fn: MetricsFn | None = None,
        evaluators: Sequence[Evaluator] = (),
        callbacks: Sequence[Callback] = (),
        checkpointer: Checkpointer | None = None,
        log_rounds: bool = True,
        **hyperparameters: Any,
    ) -> None:
        check_kinds(locals())
        self._started = {}
        self.in_flight = in_flight
        self.fraction_train = fraction_train
        self.min_train_nodes = min_train_nodes
        self.min_available_nodes = min_available_nodes
        self.fraction_evaluate = fraction_evaluate
        self.min_evaluate_nodes = min_evaluate_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        in_flight = self.sampling.in_flight
        self.seed = whole_from(0).check("seed", seed)
        self.max_seconds = _POSITIVE.check("max_seconds", max_seconds)
        self.queue_ahead = whole_from(0).check("queue_ahead", queue_ahead)
        self.evaluate_every = whole_from(1).check("evaluate_every", evaluate_every)
        self.max_examples = whole_from(1).check("max_examples", max_examples)
        self.outlier_factor = OUTLIER_FACTORS.check("outlier_factor", outlier_factor)
        self.algorithm = choose_algorithm(
            type(self).__name__,
            self.algorithm_type,
            algorithm,
            hyperparameters,
            signature(Arguments).parameters,
        )
        check_no_fields(self, self.algorithm_type)
        self.aggregator = aggregator
        self.build_aggregator(in_flight or _MANY)
        self.objective = objective
        if self.algorithm is not None:
            refuse_ignored(
                type(self).__name__,
                self.algorithm,
                hyperparameters,
                {"aggregator": aggregator, "masks": masks, "objective": objective},
                in_flight or _MANY,
            )
        check_model(type(self).__name__, model)
        if example_inputs is not None:
            example_inputs = examples_of(example_inputs, example_kwargs)
        self.assignment, self.plan = build_assignment(
            type(self).__name__,
            masks or (self.algorithm.checked_masks() if self.algorithm else None),
            "channels" if self.algorithm is None else self.algorithm.units,
            model,
            example_inputs,
            plan=plan,
            scope=scope,
            mode=mode,
            duration=duration,
        )
        self.masks, self.mode, self.duration = masks, mode, duration
        self.codec = codec_choice(codec)
        self.trainable = TrainedPart(model, trainable)
        self.devices_have_frozen = devices_have_frozen
        self.fleet = fleet
        self.selection = selection or Stratified()
        self.schedule = schedule
        self.faults = faults
        self.probe = probe
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or weighted_mean
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or weighted_mean
        self.evaluators = tuple(evaluators)
        self.callbacks = tuple(callbacks)
        self.checkpointer = checkpointer
        self.log_rounds = log_rounds
        check_overrides(self)

    def build_aggregator(self, in_flight: int) -> Aggregator:
        """Return a new aggregator for so many devices in flight."""
        if self.aggregator is not None:
            own = copied("aggregator", self.aggregator)
            if self.algorithm is None:
                return check_aggregator(own, type(self).__name__)
            return self.algorithm.clipped(own)
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
        resends: bool = False,
    ) -> Run:
        initial = read_initial(arrays, self.plan, self.trainable.model)
        state = RunState.start_from(initial, self.seed, self.trainable.frozen(initial))
        codec = self.codec
        check_mergeable(state.arrays, codec.label if codec and codec.is_lossy else "")
        simulated, algorithm = self.fleet is not None, self.algorithm
        resends = resends or bool(self.checkpointer or state.frozen.tensors)
        devices = saved["updates_per_round"] if saved else len(node_ids)
        devices = min(in_flight, devices)
        settings = TrainSettings(
            config=config,
            schedule=self._schedule(state, devices),
            keys=self.keys,
            ttl=max(timeout, DEFAULT_TTL) if simulated else timeout,
        )
        run = open_run(
            state,
            node_ids,
            DispatchRules(
                copied("selection", self.selection),
                self.assignment.with_masks(copied("masks", self.assignment.masks)),
                settings,
                self.faults,
                self.queue_ahead if queue_ahead is None else queue_ahead,
                keeps_base=simulated and resends,
                codec=self.codec,
                brings_frozen=simulated and not self.devices_have_frozen,
            ),
            in_flight=in_flight,
            build_aggregator=self.build_aggregator,
            build_fleet=self.fleet,
            averaging=algorithm.averaging if algorithm else 0.0,
            max_examples=self.max_examples,
            outlier_factor=self.outlier_factor,
            saved=saved,
        )
        if self.checkpointer is not None:
            run.arguments = self._arguments(run)
            build = partial(self._new_parts, run.slots)
            run.unsaved = Unsaved({**run.parts, **self._shared}, build)
        return run

    @property
    def _shared(self) -> Mapping[str, object]:
        """Return what all runs have, and what must not change in one."""
        return {
            "algorithm": self.algorithm,
            "codec": self.codec,
            "schedule": self.schedule,
        }

    def _new_parts(self, slots: int) -> Mapping[str, object]:
        """Return the objects that a run begins with, which may change in it."""
        return {
            "aggregator": self.build_aggregator(slots),
            "masks": copied("masks", self.assignment.masks),
            "selection": copied("selection", self.selection),
            **self._shared,
        }

    @property
    def _unresumable(self) -> str:
        """Why no checkpoint has all that a run depends on; "" if it has."""
        codec = self.codec
        if self.algorithm is not None and self.algorithm.keeps_client_state:
            kept = f"algo={self._label!r} keeps state on its clients"
        elif self.fleet is not None and codec is not None and codec.uses_feedback:
            kept = f"codec={codec.label!r} keeps what it has lost on the clients"
        else:
            return ""
        return f"{kept}, and no checkpoint has it, so the run cannot be resumed"

    def _objective_config(self) -> Mapping[str, object]:
        objective = self.objective
        if objective is None and self.algorithm is not None:
            objective = self.algorithm.checked_objective()
        return objective.config() if objective else {}

    def _schedule(self, state: RunState, num_ranks: int) -> Schedule:
        if not callable(self.schedule):
            return self.schedule
        typical = None if self.codec is None else self.codec.typical
        costs = first_costs(self.assignment, state, num_ranks, typical)
        schedule = self.schedule(costs)
        if not hasattr(schedule, "factor"):
            raise ConfigError(
                f"schedule(...) returned {printable(shown(schedule))}: a function is "
                "asked once, with the costs of the first tasks, for a Schedule"
            )
        return schedule

    @property
    def _label(self) -> str:
        if self.algorithm is not None:
            return self.algorithm.label()
        return type(self.aggregator).__name__

    def _arguments(self, run: Run) -> StateDict:
        """Return the other arguments that a resumed run must share."""
        profiles = run.fleet.profiles
        schedule: Schedule | None = run.dispatcher.rules.settings.schedule
        if callable(self.schedule) and profiles is None:
            schedule = None  # what is made of a real fleet depends on who is there
        arguments = {
            "aggregator": self.aggregator,
            "masks": self.masks,
            "plan": None if self.plan is None else sha256_of_units(self.plan),
            "objective": self._objective_config(),
            "codec": self.codec,
            "mode": self.mode,
            "duration": self.duration,
            "fleet": None if profiles is None else sha256_of(profiles),
            "devices_have_frozen": self.devices_have_frozen,
            "selection": self.selection,
            "schedule": schedule,
            "faults": self.faults,
            "queue_ahead": self.queue_ahead,
            "fraction_evaluate": self.fraction_evaluate,
            "min_evaluate_nodes": self.sampling.min_evaluate_nodes,
            "evaluate_every": self.evaluate_every,
            "weighted_by_key": self.weighted_by_key,
            "max_examples": self.max_examples,
            "outlier_factor": self.outlier_factor,
        }
        return {name: described(value) for name, value in arguments.items()}

    def _settings(self, num_rounds: int) -> dict[str, Any]:
        """Return the settings that a resumed run must share."""
        hyper = {} if self.algorithm is None else asdict(self.algorithm)
        return {
            "algo": self._label,
            "num-rounds": num_rounds,
            "in-flight": self.sampling.described(),
            "seed": self.seed,
            **({} if self.codec is None else {"codec": self.codec.label}),
            **{name.replace("_", "-"): value for name, value in hyper.items()},
        }
