"""Aggregating what clients say that they measured."""

import logging
from collections.abc import Callable

from flwr.app import MetricRecord, RecordDict

logger = logging.getLogger("flwr.asyncdrop")

MetricsFn = Callable[[list[RecordDict], str], MetricRecord]
"""Flower's aggregation of metrics: records and the weighting key to one record."""


def aggregate_metrics(
    aggregate: MetricsFn, records: list[RecordDict], weighting_key: str
) -> MetricRecord:
    """Aggregate metrics, if they can be; else return an empty record, with a warning.

    Clients choose what they measure, so any two may not fit together: a list from one
    where another has a number makes Flower's own function raise. Metrics are worth a
    warning, not the run.
    """
    try:
        return aggregate(records, weighting_key)
    except Exception as error:
        logger.warning(
            "the metrics of %d clients cannot be aggregated (%s: %s) and are left out: "
            "let all clients send the same keys, each with numbers of one length",
            len(records),
            type(error).__name__,
            " ".join(str(error).split()),
        )
        return MetricRecord()
