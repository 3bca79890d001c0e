"""The weighted mean of clients' metrics, of which not all have all."""

import logging
from collections.abc import Collection, Mapping, Sequence
from math import isfinite

from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.flower_internals.metrics import aggregate_metricrecords
from flwr_asyncdrop.readable import some

logger = logging.getLogger("flwr.asyncdrop")

Value = int | float | list[int] | list[float]
Metrics = Mapping[str, Value]

_MOST_NAMED = 5


def weighted_mean(records: Sequence[RecordDict], weighting_key: str) -> MetricRecord:
    """Return Flower's weighted mean of metrics, each of the clients that have it.

    Flower refuses replies of which some lack a metric, and its function counts what is
    missing as 0. If two records of one client have a metric of one name, the later one
    counts.

    One client's NaN or infinity would make NaN of a mean: it is left out of the mean of
    that metric, with a warning, unless all clients that have the metric have such a
    value, so that a run that diverges shows it. A metric that is a number of one client
    and a list of another, or lists of several lengths, has no mean, which is said too.
    """
    clients = [_flat(record, weighting_key) for record in records]
    names = dict.fromkeys(name for metrics in clients for name in metrics)
    names.pop(weighting_key, None)
    partly, wholly, unlike = [], [], []
    counted: dict[str, tuple[int, ...]] = {}  # by metric, the places of clients
    for name in names:
        have = [place for place, metrics in enumerate(clients) if name in metrics]
        finite = [place for place in have if _is_finite(clients[place][name])]
        if not finite:
            wholly.append(name)
        elif len(finite) < len(have):
            partly.append(f"{name} of {len(have) - len(finite)} of {len(have)} clients")
        places = finite or have
        if len({_length(clients[place][name]) for place in places}) == 1:
            counted[name] = tuple(places)
        else:
            unlike.append(name)
    _warn("NaN or infinite, and left out of the round's mean: %s", partly)
    _warn("NaN or infinite of all clients that have it, and in the mean: %s", wholly)
    _warn(
        "left out, as one client has a number and another a list, or one of another "
        "length: %s",
        unlike,
    )
    means: dict[str, Value] = {}
    for group in dict.fromkeys(counted.values()):
        alike = [weighting_key, *(n for n in counted if counted[n] == group)]
        means.update(_mean([clients[p] for p in group], alike, weighting_key))
    return MetricRecord({name: means[name] for name in counted})


def _warn(message: str, metrics: Sequence[str]) -> None:
    if metrics:
        logger.warning(message, some(metrics, _MOST_NAMED))


def _mean(
    clients: Sequence[Metrics], names: Collection[str], weighting_key: str
) -> MetricRecord:
    records = [
        RecordDict({"": MetricRecord({name: metrics[name] for name in names})})
        for metrics in clients
    ]
    return aggregate_metricrecords(records, weighting_key)


def _flat(record: RecordDict, weighting_key: str) -> Metrics:
    """Return all metrics of a client; the first record has the weight."""
    first, *others = wire.records_of(record, MetricRecord).values()
    metrics = dict(first)
    for other in others:
        metrics.update(other)
    return {**metrics, weighting_key: first[weighting_key]}


def _is_finite(value: Value) -> bool:
    return all(map(isfinite, value if isinstance(value, list) else [value]))


def _length(value: Value) -> int | None:
    """Return how many numbers a list has; None for a number."""
    return len(value) if isinstance(value, list) else None
