"""Flower's synchronous hooks: one honest round of the same algorithm."""

import logging
import math
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, NoReturn

from flwr.app import (
    DEFAULT_TTL,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.results import (
    MetricsFn,
    ResultCollector,
    aggregate_metrics,
)
from flwr_asyncdrop.overrides import check_names
from flwr_asyncdrop.readable import type_of
from flwr_asyncdrop.server.client_evaluator import ClientEvaluator
from flwr_asyncdrop.server.evaluator import Evaluator
from flwr_asyncdrop.server.merging import name_of
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.server_evaluator import ServerEvaluator
from flwr_asyncdrop.server.train_settings import TrainConfig
from flwr_asyncdrop.strategy import rounds
from flwr_asyncdrop.strategy.decoded import DecodedReplies, with_decoded
from flwr_asyncdrop.strategy.for_subclasses import ForSubclasses, OrFlowers
from flwr_asyncdrop.strategy.hooks import (
    RoundHooks,
    evaluations_of,
    is_overridden,
)
from flwr_asyncdrop.strategy.legacy import PRIVATE_HOOKS, LegacyHooks
from flwr_asyncdrop.strategy.sampling import MIN_NODES, Sampling
from flwr_asyncdrop.strategy.start import Connection, StartArguments
from flwr_asyncdrop.strategy.train_configs import TrainConfigs, config_of
from flwr_asyncdrop.strategy.wrappers import check_wrapper, clipping_norm, warn_of_codes

logger = logging.getLogger("flwr.asyncdrop")

_MOST_EVALUATED = 16  # rounds that real clients evaluate at once


class SynchronousRounds(ForSubclasses, LegacyHooks, Strategy):
    """The hooks that Flower's own round calls, for tools that drive them.

    A round dispatches to as many devices as the asynchronous run has in flight, and
    merges their replies in the order of dispatch, as if they arrived together.
    """

    in_flight: int | None
    fraction_train = OrFlowers(1.0)
    min_train_nodes = OrFlowers(MIN_NODES)
    min_available_nodes: int
    fraction_evaluate: float
    min_evaluate_nodes = OrFlowers(MIN_NODES)
    weighted_by_key: str
    arrayrecord_key: str
    configrecord_key: str
    train_metrics_aggr_fn: MetricsFn
    evaluate_metrics_aggr_fn: MetricsFn
    # What threads have started, by their number, and what a caller drives.
    _started: dict[int, tuple[Run, RoundHooks]]
    _driven: Run | None = None
    # While an overridden `aggregate_train` of a driven round is called.
    _decoded: DecodedReplies | None = None
    # What a subclass kept when the first run with a checkpointer began.
    _kept_first: Mapping[str, str] | None = None

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        check_names(cls, but=PRIVATE_HOOKS)

    if not TYPE_CHECKING:  # it would have an attribute of any name then

        def __getattribute__(self, name: str) -> object:
            """Return an attribute; an `aggregate_train` of a user's gets no codes.

            It may be a subclass's, or be set later, on the class or the strategy.
            """
            found = super().__getattribute__(name)
            if name != "aggregate_train":
                return found
            ours = SynchronousRounds.aggregate_train
            is_ours = getattr(found, "__func__", None) is ours
            return found if is_ours else with_decoded(self, found)

    @property
    def _run(self) -> Run | None:
        """The run that this thread has started, else the one that is driven."""
        started = self._started.get(get_ident())
        return self._driven if started is None else started[0]

    @property
    def _hooks(self) -> RoundHooks | None:
        """Those of the run that this thread has started."""
        started = self._started.get(get_ident())
        return None if started is None else started[1]

    @property
    def _sampling(self) -> Sampling:
        """How many nodes train, evaluate, and must be there."""
        given = vars(self)  # None where the attribute reads as Flower's default
        return Sampling(**{each.name: given[each.name] for each in fields(Sampling)})

    @property
    def _keys(self) -> wire.RecordKeys:
        """Where the project keeps its records."""
        return wire.RecordKeys(
            self.arrayrecord_key, self.configrecord_key, self.weighted_by_key
        )

    @abstractmethod
    def _open(
        self,
        node_ids: Sequence[int],
        arrays: ArrayRecord,
        config: TrainConfig,
        timeout: float,
        *,
        in_flight: int,
        queue_ahead: int | None = None,
    ) -> Run:
        """Return a new run on these nodes."""

    @abstractmethod
    def _check_set(self) -> None:
        """Check what was set on the strategy after it was made."""

    @abstractmethod
    def _objective_config(self) -> Mapping[str, object]:
        """Return what the local objective adds to a train config."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round.

        Called by a subclass in an asynchronous run, it sets the config of the tasks
        that leave from now on. Else it begins one synchronous round: a submodel for as
        many devices as in flight.
        """
        if self._hooks is not None:
            return self._hooks.configured(arrays, config)
        nodes = Nodes(grid)
        settings = {**config, **self._objective_config()}
        run = None if server_round == 1 else self._driven
        begins = run is None
        if run is None:
            logger.warning(
                "%s is driven round by round: each round waits for its slowest device, "
                "and nothing is asynchronous. Its own start(...) is; what a start of "
                "your own adds goes into its hooks, evaluate_fn and callbacks "
                "(docs/migrating.md)",
                type(self).__name__,
            )
            self._check_set()
            node_ids = nodes.wait_for(self._sampling.needed, DEFAULT_TTL)
            in_flight = self._sampling.training(len(node_ids))
            run = self._driven = self._open(
                node_ids,
                arrays,
                settings,
                DEFAULT_TTL,
                in_flight=in_flight,
                queue_ahead=0,
            )
            if run.aggregator.steps_at < math.inf:
                raise ConfigError(
                    f"{name_of(run.aggregator)} steps by the time, and rounds "
                    "that are driven from outside have no clock: run it with the "
                    "strategy's own start(...)"
                )
            # No round waits for a task that is sent a second time.
            delivery = run.dispatcher.delivery
            delivery.unasked, delivery.always = True, run.simulated
        else:
            rounds.proceed(run, wire.from_record(arrays), settings, nodes.ids())
        messages = rounds.train_messages(run, server_round)
        check_wrapper(self, run.state)
        if begins:
            warn_of_codes(self, run.state)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End it: merge every reply, in the order of dispatch.

        Called by a subclass in an asynchronous run, whose replies are merged already,
        it returns the global model and the metrics of the round.
        """
        if self._hooks is not None:
            return self._hooks.aggregated(list(replies))
        if self._driven is None:
            self._refuse_order("aggregate_train")
        decoded = self._decoded
        if decoded is not None:
            replies = decoded.merged(replies)
        merged = rounds.merge_all(
            self._driven,
            replies,
            clipping_norm(self),
            None if decoded is None else decoded.read,
        )
        if not merged:
            return None, None
        metrics = aggregate_metrics(
            self.train_metrics_aggr_fn,
            [reply.metrics for reply in merged],
            self._keys.num_examples,
        )
        state = self._driven.state
        return wire.to_record(state.frozen.complete(state.arrays)), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask `fraction_evaluate` of the nodes to evaluate the global model."""
        run = self._run
        if run is None:
            self._refuse_order("configure_evaluate")
        if self.fraction_evaluate == 0:
            return []
        name = type(self).__name__
        if not isinstance(arrays, ArrayRecord):
            raise ConfigError(
                f"configure_evaluate of {name} passes {type_of(arrays)} on as the "
                "arrays: pass those that it was given, or others (docs/migrating.md)"
            )
        config = config_of(config, f"config of {name}", server_round)
        return rounds.evaluation_messages(
            run,
            server_round,
            arrays,
            config,
            count=self._sampling.evaluating,
            node_ids=Nodes(grid).ids(),
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate what the clients measured; replies with an error do not count."""
        sound, failed = self._check_and_log_replies(replies, is_train=False)
        measured = [self._read_evaluation(reply) for reply in sound]
        if not measured:
            if failed:
                errors = [r.error.reason or "" for r in failed if r.has_error()]
                lacks = any("No evaluate function" in reason for reason in errors)
                logger.warning(
                    "none of %d clients has evaluated round %d%s",
                    len(failed),
                    server_round,
                    ": give the ClientApp an @app.evaluate(), or the strategy "
                    "fraction_evaluate=0.0"
                    if lacks
                    else "",
                )
            return None
        return aggregate_metrics(
            self.evaluate_metrics_aggr_fn, measured, self._keys.num_examples
        )

    def _refuse_order(self, hook: str) -> NoReturn:
        own = is_overridden(self, "configure_train", SynchronousRounds)
        raise ConfigError(
            f"{hook} comes after configure_train"
            + f", and that of {type(self).__name__} does not call super()" * own
            + ", which makes the tasks (docs/migrating.md)"
        )

    def _round_hooks(
        self,
        configs: TrainConfigs,
        collector: ResultCollector,
        grid: Grid,
        num_rounds: int,
    ) -> RoundHooks:
        """Return what calls the overridden training hooks in an asynchronous run."""
        return RoundHooks(
            self,
            configs,
            collector,
            grid,
            num_rounds,
            weighting_key=self.weighted_by_key,
            configures=is_overridden(self, "configure_train", SynchronousRounds),
            aggregates=is_overridden(self, "aggregate_train", SynchronousRounds),
        )

    def _evaluators(
        self, run: Run, connection: Connection, given: StartArguments
    ) -> list[Evaluator]:
        """Return the evaluators of an asynchronous run; clients use these hooks."""
        evaluators: list[Evaluator] = []
        grid = connection.grid
        if (evaluate_fn := given.evaluate_fn) is not None:
            draws = not getattr(evaluate_fn, "draws_nothing", False)
            beside = not (draws and grid.runs_clients_here)
            evaluators.append(
                ServerEvaluator(evaluate_fn, connection.signals.at_once, beside=beside)
            )
        hooks = ("configure_evaluate", "aggregate_evaluate")
        own = [is_overridden(self, hook, SynchronousRounds) for hook in hooks]
        if self.fraction_evaluate > 0 or any(own):
            config = given.evaluate_config
            sent = ConfigRecord() if config is None else config

            def configure(number: int, arrays: ArrayRecord) -> Iterable[Message]:
                record = config_of(sent, "evaluate_config", number)
                found = self.configure_evaluate(number, arrays, record, grid)
                return evaluations_of(self, found)

            evaluators.append(
                ClientEvaluator(
                    connection.mailbox,
                    configure,
                    self.aggregate_evaluate,
                    given.timeout,
                    partial(rounds.evaluation_again, run)
                    if run.state.frozen.tensors
                    else None,
                    # Of simulated devices the outcome must not depend on real time.
                    math.inf if run.simulated else _MOST_EVALUATED,
                )
            )
        return evaluators
