"""The hooks that Flower's own loop calls, and that subclasses of strategies extend."""

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, NoReturn

from flwr.app import DEFAULT_TTL, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.results import aggregate_metrics
from flwr_asyncdrop.overrides import check_names
from flwr_asyncdrop.readable import counted, type_of
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.strategy.arguments import Arguments, objective_config
from flwr_asyncdrop.strategy.driven import DrivenRun, check_unread
from flwr_asyncdrop.strategy.evaluation import evaluation_messages
from flwr_asyncdrop.strategy.for_subclasses import ForSubclasses
from flwr_asyncdrop.strategy.legacy import PRIVATE_HOOKS, LegacyHooks
from flwr_asyncdrop.strategy.read_once import ReadByDriven
from flwr_asyncdrop.strategy.round_hooks import Trained
from flwr_asyncdrop.strategy.running import running_now
from flwr_asyncdrop.strategy.runs import new_run
from flwr_asyncdrop.strategy.sampling import Sampling
from flwr_asyncdrop.strategy.train_configs import config_of, with_objectives
from flwr_asyncdrop.strategy.wrappers import check_wrapper, clipping_norm, warn_of_codes

logger = logging.getLogger("flwr.asyncdrop")

AggregateTrain = Callable[[int, Iterable[Message]], Trained]


class FlowerHooks(Arguments, ForSubclasses, LegacyHooks, Strategy):
    """The hooks of Flower's rounds, in a run of either kind.

    A loop that drives them gets rounds of as many devices as the asynchronous run has
    in flight; replies are merged in the order of dispatch, as if they arrived together.
    An asynchronous run calls those that a subclass overrides, whose ``super()`` is told
    there how far the run is.
    """

    _driven: DrivenRun | None = None
    _driven_read: ReadByDriven

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
            ours = FlowerHooks.aggregate_train
            is_ours = getattr(found, "__func__", None) is ours
            return found if is_ours else self._decoding(found)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round.

        Called by a subclass in an asynchronous run, it sets the config of the tasks
        that leave from now on. Else it begins one synchronous round: a submodel for as
        many devices as in flight.
        """
        if started := running_now(self):
            return started.hooks.configured(arrays, config)
        nodes = Nodes(grid)
        settings = with_objectives(config, objective_config(self))
        driven = None if server_round == 1 else self._driven
        begins = driven is None
        if driven is None:
            driven = self._driven = self._begin(nodes, arrays, settings)
            self._driven_read = ReadByDriven(self)
        else:
            self._driven_read.check()
            driven.proceed(wire.from_record(arrays), settings, nodes.ids())
        messages = driven.train(server_round)
        check_wrapper(driven.run.state)
        if begins:
            warn_of_codes(self, driven.run.state)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End it: merge every reply, in the order of dispatch.

        Called by a subclass in an asynchronous run, whose replies are merged already,
        it returns the global model and the metrics of the round.
        """
        if started := running_now(self):
            return started.hooks.aggregated(list(replies))
        driven = self._driven
        if driven is None:
            self._refuse_order("aggregate_train")
        merged = driven.merge(replies, clipping_norm())
        if not merged:
            return None, None
        metrics = aggregate_metrics(
            self.train_metrics_aggr_fn,
            [reply.metrics for reply in merged],
            self.weighted_by_key,
        )
        state = driven.run.state
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
        return evaluation_messages(
            run,
            server_round,
            arrays,
            config,
            count=Sampling.of(self).evaluating,
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
                    "none of %s has evaluated round %d%s",
                    counted(len(failed), "client"),
                    server_round,
                    ": give the ClientApp an @app.evaluate(), or the strategy "
                    "fraction_evaluate=0.0"
                    if lacks
                    else "",
                )
            return None
        return aggregate_metrics(
            self.evaluate_metrics_aggr_fn, measured, self.weighted_by_key
        )

    def _begin(
        self, nodes: Nodes, arrays: ArrayRecord, config: Mapping[str, object]
    ) -> DrivenRun:
        """Wait for the nodes, and return a run whose rounds the caller drives."""
        logger.warning(
            "%s is driven round by round: each round waits for its slowest device, "
            "and nothing is asynchronous. Its own start(...) is; what a start of "
            "your own adds goes into its hooks, evaluate_fn and callbacks "
            "(docs/migrating.md#rounds-that-are-driven-from-outside)",
            type(self).__name__,
        )
        self._check_set()
        check_unread(self)
        sampling = Sampling.of(self)
        needed, least = sampling.needed
        node_ids = nodes.wait_for(needed, DEFAULT_TTL, f"lower {least}")
        in_flight = sampling.training(len(node_ids))
        return DrivenRun(
            new_run(
                self,
                node_ids,
                arrays,
                config,
                DEFAULT_TTL,
                in_flight=in_flight,
                queue_ahead=0,
            )
        )

    def _decoding(self, hook: AggregateTrain) -> AggregateTrain:
        """Return an overridden `aggregate_train` that gets decoded replies.

        In an asynchronous run they are decoded already.
        """

        @wraps(hook)
        def aggregate_train(server_round: int, replies: Iterable[Message]) -> Trained:
            driven = self._driven
            if running_now(self) or driven is None:
                return hook(server_round, replies)
            with driven.decoding(replies) as decoded:
                return hook(server_round, decoded)

        return aggregate_train

    @property
    def _run(self) -> Run | None:
        """The run that this thread has started, else the one that is driven."""
        if started := running_now(self):
            return started.run
        return None if self._driven is None else self._driven.run

    def _overrides(self, hook: str) -> bool:
        """Return whether a subclass, or the object, has another hook of this name."""
        ours = getattr(FlowerHooks, hook)
        return getattr(getattr(self, hook), "__func__", None) is not ours

    def _refuse_order(self, hook: str) -> NoReturn:
        own = self._overrides("configure_train")
        raise ConfigError(
            f"{hook} comes after configure_train"
            + f", and that of {type(self).__name__} does not call super()" * own
            + ", which makes the tasks (docs/migrating.md)"
        )
