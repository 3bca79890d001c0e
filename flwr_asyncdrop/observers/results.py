"""Flower's ``Result``, filled while the run goes on."""

from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from flwr_asyncdrop import wire
from flwr_asyncdrop.observers.metrics import MetricsFn, aggregate_metrics
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain

_EVALUATED = {
    "clients": "evaluate_metrics_clientapp",
    "server": "evaluate_metrics_serverapp",
}
_SAVED = ("train_metrics_clientapp", *_EVALUATED.values())
"""What of a ``Result`` has metrics by round."""


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

    def state_dict(self) -> StateDict:
        """Return the metrics so far, and those of the round that is not full yet."""
        by_round = {name: getattr(self.result, name) for name in _SAVED}
        state: StateDict = to_plain({"round": self._round, **by_round})
        return state

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from there."""
        self._round = [
            RecordDict({name: MetricRecord(found) for name, found in record.items()})
            for record in state["round"]
        ]
        for name in _SAVED:
            by_round = from_plain(dict[int, Any], state[name])
            metrics = {number: MetricRecord(m) for number, m in by_round.items()}
            setattr(self.result, name, metrics)

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Keep the metrics of the update until its round is full."""
        self._round.append(merged.reply.metrics)

    def on_round(self, state: RunState, number: int) -> None:
        """Aggregate the metrics of the round."""
        metrics = aggregate_metrics(self._aggregate, self._round, self._weighting_key)
        self.result.train_metrics_clientapp[number] = metrics
        self._round = []

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """File it under its round; Flower has no place for those of other sources."""
        if evaluation.source in _EVALUATED and evaluation.metrics is not None:
            by_round = getattr(self.result, _EVALUATED[evaluation.source])
            by_round[evaluation.round] = evaluation.metrics

    def on_end(self, state: RunState) -> None:
        """Add the final model."""
        self.result.arrays = wire.to_record(state.served)
