"""The weighted mean of clients' metrics, of which not all have all."""

from collections.abc import Mapping, Sequence

from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.flower_internals.metrics import aggregate_metricrecords

Metrics = Mapping[str, int | float | list[int] | list[float]]


def weighted_mean(records: Sequence[RecordDict], weighting_key: str) -> MetricRecord:
    """Return Flower's weighted mean of metrics.

    The mean of a metric that some clients lack is that of the others. Flower refuses
    such replies, and its function counts what is missing as 0. If two records of one
    client have a metric of one name, the later one counts.
    """
    clients = [_flat(record, weighting_key) for record in records]
    names = dict.fromkeys(name for metrics in clients for name in metrics)
    if all(metrics.keys() == names.keys() for metrics in clients):
        return _mean(clients, weighting_key)
    mean = MetricRecord()
    for name in names:
        have = [metrics for metrics in clients if name in metrics]
        mine = [{weighting_key: m[weighting_key], name: m[name]} for m in have]
        mean.update(_mean(mine, weighting_key))
    return mean


def _mean(clients: Sequence[Metrics], weighting_key: str) -> MetricRecord:
    records = [RecordDict({"": MetricRecord(dict(metrics))}) for metrics in clients]
    return aggregate_metricrecords(records, weighting_key)


def _flat(record: RecordDict, weighting_key: str) -> Metrics:
    """Return all metrics of a client; the first record has the weight."""
    first, *others = wire.records_of(record, MetricRecord).values()
    metrics = dict(first)
    for other in others:
        metrics.update(other)
    return {**metrics, weighting_key: first[weighting_key]}
