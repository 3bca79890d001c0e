"""Flower's ``Result``, filled while the run goes on."""

from dataclasses import dataclass

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from flwr_asyncdrop import wire
from flwr_asyncdrop.observers.metrics import MetricsFn, aggregate_metrics
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import RunState


@dataclass(frozen=True)
class ResultsMemory:
    """What `ResultCollector` has collected, for checkpoints.

    Attributes
    ----------
    round : list of RecordDict
        Metrics of the updates of the round that is not full yet.
    train, evaluate_clients, evaluate_server : dict of int to MetricRecord
        Flower's metrics by round.
    """

    round: list[RecordDict]
    train: dict[int, MetricRecord]
    evaluate_clients: dict[int, MetricRecord]
    evaluate_server: dict[int, MetricRecord]


class ResultCollector(Callback):
    """Fills a ``Result`` round by round.

    Parameters
    ----------
    aggregate : callable
        Flower's ``train_metrics_aggr_fn``; gets the metrics of a round's updates.
    weighting_key : str
        Its second argument.
    """

    def __init__(self, aggregate: MetricsFn, weighting_key: str) -> None:
        self.result = Result()
        self._aggregate = aggregate
        self._weighting_key = weighting_key
        self._round: list[RecordDict] = []

    @property
    def memory(self) -> ResultsMemory:
        """A copy of what was collected."""
        return ResultsMemory(
            list(self._round),
            dict(self.result.train_metrics_clientapp),
            dict(self.result.evaluate_metrics_clientapp),
            dict(self.result.evaluate_metrics_serverapp),
        )

    def restore(self, memory: ResultsMemory) -> None:
        """Go on collecting from there."""
        self._round = list(memory.round)
        self.result.train_metrics_clientapp = dict(memory.train)
        self.result.evaluate_metrics_clientapp = dict(memory.evaluate_clients)
        self.result.evaluate_metrics_serverapp = dict(memory.evaluate_server)

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Keep the metrics of the update until its round is full."""
        self._round.append(merged.reply.metrics)

    def on_round(self, state: RunState, number: int) -> None:
        """Aggregate the metrics of the round."""
        metrics = aggregate_metrics(self._aggregate, self._round, self._weighting_key)
        self.result.train_metrics_clientapp[number] = metrics
        self._round = []

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """File an evaluation under its round."""
        if evaluation.metrics is None:
            return
        filed = {
            "server": self.result.evaluate_metrics_serverapp,
            "clients": self.result.evaluate_metrics_clientapp,
        }[evaluation.source]
        filed[evaluation.round] = evaluation.metrics

    def on_end(self, state: RunState) -> None:
        """Add the final model."""
        self.result.arrays = wire.to_record(state.served)
