"""Flower's ``Result``, filled during the run."""

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Result

from flwr_asyncdrop import wire
from flwr_asyncdrop.completeness.kept import is_users
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import counted, one_line
from flwr_asyncdrop.server.callbacks import Callback, Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain

logger = logging.getLogger("flwr.asyncdrop")

MetricsFn = Callable[[list[RecordDict], str], MetricRecord | None]
"""Flower's aggregation of metrics: records and the weighting key to one record."""

_EVALUATED = {
    "clients": "evaluate_metrics_clientapp",
    "server": "evaluate_metrics_serverapp",
}
# What of a ``Result`` has metrics by round.
_SAVED = ("train_metrics_clientapp", *_EVALUATED.values())


class ResultCollector(Callback):
    """Fills a ``Result``; `aggregate` gets the metrics of a round's updates.

    It is called once a round, as it may keep what it has seen: with `by_hook` not here,
    but by the hook of a strategy that asks for `aggregated`, and files it.
    """

    def __init__(
        self, aggregate: MetricsFn, weighting_key: str, *, by_hook: bool = False
    ) -> None:
        self.result = Result()
        self._aggregate = aggregate
        self._weighting_key = weighting_key
        self.by_hook = by_hook
        self._round: list[RecordDict] = []
        self._full: list[RecordDict] = []

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
        self._full, self._round = self._round, []
        if self.by_hook:
            return
        # Flower has no entry for None, which somebody's own function may return.
        if (metrics := self.aggregated()) is not None:
            self.result.train_metrics_clientapp[number] = metrics

    def aggregated(self) -> MetricRecord | None:
        """Aggregate the metrics of the last round that is full, as they are now."""
        return aggregate_metrics(self._aggregate, self._full, self._weighting_key)

    def on_evaluation(self, state: RunState, evaluation: Evaluation) -> None:
        """File it under its round; Flower has no place for those of other sources."""
        if evaluation.source in _EVALUATED and evaluation.metrics is not None:
            by_round = getattr(self.result, _EVALUATED[evaluation.source])
            by_round[evaluation.round] = evaluation.metrics

    def on_end(self, state: RunState) -> None:
        """Add the final model."""
        self.result.arrays = wire.to_record(state.served)


def aggregate_metrics(
    aggregate: MetricsFn, records: list[RecordDict], weighting_key: str
) -> MetricRecord | None:
    """Aggregate metrics; return an empty record, with a warning, if it is impossible.

    So it is if `aggregate` returns something else than a record or a dict of numbers.

    Clients choose what they measure, and a function of a user's own may not expect it:
    as in Flower, it gets the metrics of all clients, NaN and infinity among them.
    """
    try:
        found = aggregate(records, weighting_key)
    except Exception as error:
        logger.warning(
            "the metrics of %s cannot be aggregated (%s) and are left out: %s",
            counted(len(records), "client"),
            one_line(error),
            "the function for it is your own, which gets the metric records of each "
            f"reply and {weighting_key!r}"
            if is_users(aggregate)
            else "let all clients send the same keys, each with numbers of one length",
        )
        return MetricRecord()
    try:
        return wire.metric_record(found, "the function that aggregates metrics")
    except ConfigError as error:
        clients = counted(len(records), "client")
        logger.warning("%s; those of %s are left out", error, clients)
        return MetricRecord()
