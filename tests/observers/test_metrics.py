import logging

import pytest
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from flwr_asyncdrop.observers.metrics import aggregate_metrics


def records(*metrics):
    return [
        RecordDict({"metrics": MetricRecord({"num-examples": 1, **each})})
        for each in metrics
    ]


def test_metrics_that_fit_are_aggregated_as_flower_does():
    sent = records({"loss": 1.0}, {"loss": 3.0})
    aggregated = aggregate_metrics(aggregate_metricrecords, sent, "num-examples")
    assert dict(aggregated) == {"loss": 2.0}


@pytest.mark.parametrize("odd", [[1.0, 2.0], [1.0, 2.0, 3.0]])
def test_metrics_that_do_not_cost_a_warning(odd, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    sent = records({"loss": [1.0] * 3 if len(odd) == 2 else 1.0}, {"loss": odd})
    with pytest.raises((TypeError, ValueError)):
        aggregate_metricrecords(sent, "num-examples")
    assert not aggregate_metrics(aggregate_metricrecords, sent, "num-examples")
    assert "metrics of 2 clients cannot be aggregated" in caplog.text
