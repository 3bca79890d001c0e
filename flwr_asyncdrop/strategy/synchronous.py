"""Flower's synchronous hooks: one honest round of the same algorithm."""

import logging
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from flwr.app import (
    DEFAULT_TTL,
    ArrayRecord,
    ConfigRecord,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError, ReplyError
from flwr_asyncdrop.observers.results import MetricsFn, aggregate_metrics
from flwr_asyncdrop.server.evaluation import (
    ClientEvaluator,
    EvaluateFn,
    Evaluator,
    ServerEvaluator,
)
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.strategy import rounds

logger = logging.getLogger("flwr.asyncdrop")


class SynchronousRounds(Strategy):
    """The hooks that Flower's own round calls, for tools that drive them.

    A round dispatches to as many devices as the asynchronous run has in flight, and
    merges their replies in the order of dispatch, as if they arrived together.
    """

    min_available_nodes: int
    fraction_evaluate: float
    keys: wire.RecordKeys
    max_examples: int
    train_metrics_aggr_fn: MetricsFn
    evaluate_metrics_aggr_fn: MetricsFn
    _run: Run | None = None

    @abstractmethod
    def _open(
        self,
        node_ids: Sequence[int],
        arrays: ArrayRecord,
        config: ConfigRecord | None,
        timeout: float,
        *,
        queue_ahead: int | None = None,
    ) -> Run:
        """Return a new run on these nodes."""

    @abstractmethod
    def _train_config(self, config: ConfigRecord | None) -> Mapping[str, object]:
        """Return a train config with what the local objective adds to it."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin one synchronous round: a submodel for as many devices as in flight."""
        nodes = Nodes(grid)
        if self._run is None or server_round == 1:
            node_ids = nodes.wait_for(self.min_available_nodes, DEFAULT_TTL)
            self._run = self._open(node_ids, arrays, config, DEFAULT_TTL, queue_ahead=0)
        else:
            state = wire.from_record(arrays)
            rounds.proceed(self._run, state, self._train_config(config), nodes.ids())
        return rounds.train_messages(self._run, server_round)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """End it: merge every reply, in the order of dispatch."""
        if self._run is None:
            raise ConfigError("aggregate_train comes after configure_train")
        merged = rounds.merge_all(self._run, replies)
        if not merged:
            return None, None
        metrics = aggregate_metrics(
            self.train_metrics_aggr_fn,
            [reply.metrics for reply in merged],
            self.keys.num_examples,
        )
        return wire.to_record(self._run.state.arrays), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask `fraction_evaluate` of the nodes to evaluate the global model."""
        if self._run is None:
            raise ConfigError("configure_evaluate comes after configure_train")
        if self.fraction_evaluate == 0:
            return []
        return rounds.evaluation_messages(
            self._run,
            server_round,
            arrays,
            config,
            fraction=self.fraction_evaluate,
            node_ids=Nodes(grid).ids(),
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Aggregate what the clients measured; replies with an error do not count."""
        measured: list[RecordDict] = []
        for reply in replies:
            try:
                read = wire.read_evaluation(reply, self.keys, self.max_examples)
                measured.append(read)
            except ReplyError as error:
                node = reply.metadata.src_node_id
                logger.warning("no evaluation from node %d: %s", node, error)
        if not measured:
            return None
        return aggregate_metrics(
            self.evaluate_metrics_aggr_fn, measured, self.keys.num_examples
        )

    def _evaluators(
        self,
        mailbox: Mailbox,
        grid: Grid,
        evaluate_fn: EvaluateFn | None,
        config: ConfigRecord | None,
        timeout: float,
    ) -> list[Evaluator]:
        """Return the evaluators of an asynchronous run; clients use these hooks."""
        evaluators: list[Evaluator] = []
        if evaluate_fn is not None:
            evaluators.append(ServerEvaluator(evaluate_fn))
        if self.fraction_evaluate > 0:
            sent = ConfigRecord() if config is None else config
            configure = partial(self.configure_evaluate, config=sent, grid=grid)
            evaluators.append(
                ClientEvaluator(mailbox, configure, self.aggregate_evaluate, timeout)
            )
        return evaluators
