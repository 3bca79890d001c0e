import logging
import math

import numpy as np
import pytest
import torch
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from flwr_asyncdrop import wire
from flwr_asyncdrop.observers.results import ResultCollector, aggregate_metrics
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply
from tests.states import saved_and_read


def state():
    return RunState.start_from({"w": torch.ones(2)}, seed=0)


def merged(loss):
    metrics = RecordDict({"metrics": MetricRecord({"n": 1, "loss": loss})})
    return Merged(order=None, reply=Reply({}, 1, metrics, 0), staleness=0, round=1)


def mean(records, key):
    assert key == "n"
    losses = [record["metrics"]["loss"] for record in records]
    return MetricRecord({"loss": sum(losses) / len(losses), "count": len(losses)})


def test_each_round_is_aggregated_on_its_own():
    collector, run = ResultCollector(mean, "n"), state()
    for number, losses in ((1, [1.0, 3.0]), (2, [5.0])):
        for loss in losses:
            collector.on_update(run, merged(loss))
        collector.on_round(run, number)
    assert collector.result.train_metrics_clientapp == {
        1: MetricRecord({"loss": 2.0, "count": 2}),
        2: MetricRecord({"loss": 5.0, "count": 1}),
    }


def test_a_round_whose_metrics_are_none_has_no_entry_as_in_flower():
    collector, run = ResultCollector(lambda records, key: None, "n"), state()
    collector.on_update(run, merged(1.0))
    collector.on_round(run, 1)
    collector.on_end(run)
    assert collector.result.train_metrics_clientapp == {}
    assert "Global Arrays" in str(collector.result)  # which the log shows


@pytest.mark.parametrize(
    ("source", "filed", "other"),
    [
        ("server", "evaluate_metrics_serverapp", "evaluate_metrics_clientapp"),
        ("clients", "evaluate_metrics_clientapp", "evaluate_metrics_serverapp"),
    ],
)
def test_evaluations_are_filed_by_their_own_round(source, filed, other):
    collector, run = ResultCollector(mean, "n"), state()
    metrics = MetricRecord({"accuracy": 0.5})
    run.updates = 99
    collector.on_evaluation(run, Evaluation(source, 3, 24, 1.0, metrics))
    collector.on_evaluation(run, Evaluation(source, 4, 32, 1.5, None))
    assert getattr(collector.result, filed) == {3: metrics}
    assert getattr(collector.result, other) == {}


def test_the_final_model_is_that_of_the_end():
    collector, run = ResultCollector(mean, "n"), state()
    collector.on_start(run)
    run.arrays["w"] += 4
    collector.on_end(run)
    run.arrays["w"] += 4
    assert wire.from_record(collector.result.arrays)["w"].tolist() == [5, 5]


def test_evaluations_of_other_sources_have_no_place_in_flowers_result():
    collector, run = ResultCollector(mean, "n"), state()
    metrics = MetricRecord({"accuracy": 0.5})
    for source in ("train_metrics_clientapp", "hold-out"):
        collector.on_evaluation(run, Evaluation(source, 3, 24, 1.0, metrics))
    assert collector.result == type(collector.result)()


def test_it_continues_from_a_state_in_the_middle_of_a_round():
    collector, run = ResultCollector(mean, "n"), state()
    collector.on_update(run, merged(1.0))
    collector.on_round(run, 1)
    for source in ("server", "clients"):
        metrics = MetricRecord({"curve": [0.5, 1.0], "n": 3})
        collector.on_evaluation(run, Evaluation(source, 1, 8, 1.0, metrics))
    collector.on_update(run, merged(2.0))
    again = ResultCollector(mean, "n")
    again.load_state_dict(saved_and_read(collector.state_dict()))
    for each in (collector, again):
        each.on_update(run, merged(4.0))
        each.on_round(run, 2)
    for name in ("train_metrics_clientapp", "evaluate_metrics_clientapp"):
        expected = getattr(collector.result, name)
        assert expected
        assert repr(getattr(again.result, name)) == repr(expected)
    assert again.result.train_metrics_clientapp[2]["loss"] == 3.0


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


def test_a_function_of_a_users_own_that_raises_is_called_so(caplog, monkeypatch):
    """It is not for the clients to send other metrics."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def own(records):
        raise AssertionError

    assert not aggregate_metrics(own, records({"loss": 1.0}), "examples")
    assert "the function for it is your own, which gets the metric" in caplog.text
    assert "let all clients" not in caplog.text


def test_a_function_may_return_a_dict_of_numbers():
    for one in (0.5, np.float32(0.5), torch.tensor(0.5)):
        found = aggregate_metrics(lambda *_, one=one: {"x": one}, records({}), "n")
        assert found == MetricRecord({"x": 0.5})
        assert type(found["x"]) is float


@pytest.mark.parametrize(
    "odd", [0.5, (0.5, {"x": 1.0}), {"x": "high"}, {"x": {"y": 1.0}}, {1: 0.5}]
)
def test_what_else_it_returns_costs_a_warning(odd, caplog, monkeypatch):
    """It went into the result, of which Flower then made no text: the run was lost."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    collector, run = ResultCollector(lambda *_: odd, "n"), state()
    collector.on_update(run, merged(1.0))
    collector.on_round(run, 1)
    assert f"returned {odd!r}: return a MetricRecord" in caplog.text
    assert collector.result.train_metrics_clientapp == {1: MetricRecord()}
    assert str(collector.result)


def test_a_users_own_function_gets_what_all_clients_sent():
    """As in Flower: to leave out what is NaN, or to count it, is its business."""
    sent = records({"loss": 1.0}, {"loss": math.nan}, {"loss": math.inf})
    given = []
    aggregate_metrics(lambda *found: given.append(found), sent, "num-examples")
    assert given == [(sent, "num-examples")]
