"""The arguments of a strategy, checked."""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from inspect import signature
from typing import Any, ClassVar, Literal

from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import OUTLIER_FACTOR, OUTLIER_FACTORS, Aggregator
from flwr_asyncdrop.aggregation.aggregator import check_aggregator
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.codecs import CodecChoice, codec_choice
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.selection import Selection, Stratified
from flwr_asyncdrop.fleet.work import WorkPolicy
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.objectives import LocalObjective, checked_config
from flwr_asyncdrop.observers.results import MetricsFn
from flwr_asyncdrop.overrides import check_methods, check_no_fields, check_overrides
from flwr_asyncdrop.parameters import Range, whole_from
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.compute_share import DurationRule
from flwr_asyncdrop.server.evaluator import Evaluator
from flwr_asyncdrop.server.opening import FleetBuilder
from flwr_asyncdrop.server.schedule import Schedule, ScheduleBuilder, StepDecay
from flwr_asyncdrop.strategy.copies import copied
from flwr_asyncdrop.strategy.ignored import refuse_ignored, refuse_untrimmed
from flwr_asyncdrop.strategy.kinds import CHECKED, check_kinds
from flwr_asyncdrop.strategy.legacy import check_no_legacy
from flwr_asyncdrop.strategy.products import check_products
from flwr_asyncdrop.strategy.replaced import choose_algorithm
from flwr_asyncdrop.strategy.sampling import MIN_NODES, OrFlowers, Sampling
from flwr_asyncdrop.strategy.train_configs import config_of
from flwr_asyncdrop.strategy.trained_part import TrainedPart
from flwr_asyncdrop.strategy.units import (
    build_assignment,
    check_model,
)
from flwr_asyncdrop.strategy.weighted_mean import weighted_mean
from flwr_asyncdrop.submodel import Inputs, Plan, Scope, Trainable, examples_of
from flwr_asyncdrop.wire.codec import Codec

logger = logging.getLogger("flwr.asyncdrop")

_POSITIVE = Range(lambda v: v > 0, "more than 0")
_NUMBERS = {
    "seed": whole_from(0),
    "max_seconds": _POSITIVE,
    "queue_ahead": whole_from(0),
    "evaluate_every": whole_from(1),
    "max_examples": whole_from(1),
    "outlier_factor": OUTLIER_FACTORS,
}
# What a strategy is made of, and does not look at again.
_MADE_OF = (
    "algorithm",
    "masks",
    "plan",
    "assignment",
    "mode",
    "duration",
    "trainable",
)
_MANY = 2**20  # devices in flight, while nobody knows how many nodes there will be


class Arguments:
    """Checks the arguments of `AsyncStrategy`, and keeps them."""

    fraction_train = OrFlowers(1.0)
    min_train_nodes = OrFlowers(MIN_NODES)
    min_evaluate_nodes = OrFlowers(MIN_NODES)

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
        work: WorkPolicy | None = None,
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
        self.in_flight = in_flight
        self.fraction_train = fraction_train
        self.min_train_nodes = min_train_nodes
        self.min_available_nodes = min_available_nodes
        self.fraction_evaluate = fraction_evaluate
        self.min_evaluate_nodes = min_evaluate_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key = arrayrecord_key
        self.configrecord_key = configrecord_key
        in_flight = Sampling.of(self).in_flight
        self.seed = seed
        self.max_seconds = max_seconds
        self.queue_ahead = queue_ahead
        self.evaluate_every = evaluate_every
        self.max_examples = max_examples
        self.outlier_factor = outlier_factor
        self._check_numbers()
        self.algorithm = choose_algorithm(
            type(self).__name__,
            self.algorithm_type,
            algorithm,
            hyperparameters,
            signature(Arguments).parameters,
        )
        check_no_fields(self, self.algorithm if self.algorithm_type else None)
        self.aggregator = aggregator
        check_products(self.build_aggregator(in_flight or _MANY), plan)
        self.objective = objective
        if self.algorithm is not None:
            refuse_untrimmed(type(self).__name__, self.algorithm)
            refuse_ignored(
                type(self).__name__,
                self.algorithm,
                hyperparameters,
                {
                    "aggregator": aggregator,
                    "masks": masks,
                    "objective": objective,
                    "selection": selection,
                    "work": work,
                },
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
        self.codec = self._checked_codec(codec)
        self.trainable = TrainedPart(model, trainable)
        self.devices_have_frozen = devices_have_frozen
        self.fleet = fleet
        if selection is None and self.algorithm is not None:
            selection = self.algorithm.checked_selection()
        self.selection = selection or Stratified()
        if work is None and self.algorithm is not None:
            work = self.algorithm.checked_work()
        self.work = work
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
        self._made = {name: getattr(self, name) for name in _MADE_OF}

    def _check_set(self) -> None:
        """Check what was set on the strategy after it was made.

        ConfigError for what it cannot be, and for what would have no effect, as the
        strategy is made of it.
        """
        kind, given = type(self).__name__, vars(self)
        if "_made" not in given:
            raise ConfigError(
                f"the __init__ of {kind} does not call super().__init__(...), which "
                "takes the arguments of the strategy"
            )
        check_no_legacy(self)
        check_methods(self)
        changed = [name for name in _MADE_OF if given[name] is not self._made[name]]
        known = fields(self.algorithm) if self.algorithm else ()
        changed += [each.name for each in known if each.name in given]
        if changed:
            raise ConfigError(
                f"{changed[0]} of {kind} was set when the strategy was made, which has "
                f"no effect: pass it, {kind}({changed[0]}=...)"
            )
        check_kinds({name: getattr(self, name) for name in CHECKED})
        self._check_numbers()
        self.codec = self._checked_codec(self.codec)

    def _checked_codec(
        self, codec: str | Codec | CodecChoice | None
    ) -> CodecChoice | None:
        """Return the choice of codecs; ConfigError for one that the mode has not."""
        found = codec_choice(codec)
        masked = self.mode == "masked" and self.plan is not None
        if masked and found is not None and not found.keeps_zeros:
            raise ConfigError(
                f"codec={found.label!r} with mode='masked': units that are left out "
                "are zeros, of which q2 and q1 make other numbers; take q8 or q4 for "
                "the way down, or mode='sliced'"
            )
        return found

    def _check_numbers(self) -> None:
        for name, allowed in _NUMBERS.items():
            setattr(self, name, allowed.check(name, getattr(self, name)))

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
        """Log what this strategy does, and what it leaves to the clients."""
        logger.info("\t├── Algorithm: %s, seed %d", label_of(self), self.seed)
        if asked := objective_config(self):
            said = ", ".join(f"{key}={shown(value)}" for key, value in asked.items())
            logger.info("\t├── Clients' loss, by their config: %s", said)
        clock = "wall" if self.fleet is None else "virtual"
        flying = Sampling.of(self).described()
        logger.info("\t├── In flight: %s, on the %s clock", flying, clock)
        if self.plan is None:
            logger.info("\t└── Every device trains the full model")
        else:
            groups, units = len(self.plan.groups), self.plan.num_units
            logger.info("\t└── Submodels: %d units in %d groups", units, groups)


def label_of(given: Arguments) -> str:
    """Return what the settings of a run call its algorithm."""
    if given.algorithm is not None:
        return given.algorithm.label()
    return type(given.aggregator).__name__


def objective_config(given: Arguments) -> Mapping[str, object]:
    """Return what the local objective adds to a train config; it can be sent."""
    objective = given.objective
    if objective is None and given.algorithm is not None:
        objective = given.algorithm.checked_objective()
    if objective is None:
        return {}
    added = checked_config(objective)
    return dict(config_of(added, f"config() of {type(objective).__name__}", 1))
