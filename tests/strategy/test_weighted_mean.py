"""Metrics that some clients lack: Flower's own function counts them as 0."""

import logging
import math

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

from flwr_asyncdrop import FedBuff
from flwr_asyncdrop.strategy.weighted_mean import weighted_mean
from tests.grids import HandlerGrid


def mean(*replies):
    return dict(weighted_mean([RecordDict(reply) for reply in replies], "n"))


def test_the_mean_is_of_those_that_have_it():
    found = mean(
        {"metrics": MetricRecord({"n": 1, "loss": 1.0, "accuracy": 0.5})},
        {"metrics": MetricRecord({"n": 3, "loss": 3.0})},
        {"metrics": MetricRecord({"n": 4, "words": [2.0, 6.0]})},
    )
    assert found == {"loss": 2.5, "accuracy": 0.5, "words": [2.0, 6.0]}


def test_of_two_with_one_name_the_later_counts_once():
    one = {"a": MetricRecord({"n": 1, "loss": 1.0, "x": 2.0})}
    two = {**one, "b": MetricRecord({"n": 9, "loss": 3.0})}
    assert mean(two) == {"loss": 3.0, "x": 2.0}
    assert mean(one, two) == {"loss": 2.0, "x": 2.0}


def test_those_that_all_have_are_bit_for_bit_as_flower_has_them():
    generator = torch.Generator().manual_seed(0)
    sent = [
        RecordDict({"m": MetricRecord({"n": n, "x": x, "y": [x, -x]})})
        for n, x in enumerate(torch.rand(9, generator=generator).tolist(), 1)
    ]
    assert weighted_mean(sent, "n") == aggregate_metricrecords(sent, "n")


class TestNumbersThatAreNone:
    """One client's NaN would make NaN of the mean of its round."""

    @pytest.fixture(autouse=True)
    def _logs(self, monkeypatch):
        monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)

    def mean(self, *replies):
        return mean(*({"m": MetricRecord({"n": 1, **each})} for each in replies))

    @pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
    def test_that_metric_of_that_client_is_left_out_and_named(self, odd, caplog):
        """All metrics of such a client were."""
        found = self.mean(
            {"loss": 1.0, "acc": 0.5}, {"loss": odd, "acc": 1.0}, {"loss": 3.0}
        )
        assert found == {"loss": 2.0, "acc": 0.75}
        assert caplog.messages == [
            "NaN or infinite, and left out of the round's mean: loss of 1 of 3 clients"
        ]

    def test_a_list_with_one_is_left_out_whole(self):
        assert self.mean({"x": [1.0, 2.0]}, {"x": [3.0, math.nan]}) == {"x": [1.0, 2.0]}

    def test_if_all_that_have_it_are_so_it_shows(self, caplog):
        found = self.mean({"loss": math.nan}, {"loss": math.inf}, {"acc": 0.5})
        assert math.isnan(found["loss"])
        assert found["acc"] == 0.5
        assert caplog.messages == [
            "NaN or infinite of all clients that have it, and in the mean: loss"
        ]

    def test_of_many_some_are_named(self, caplog):
        names = [f"m{number}" for number in range(9)]
        self.mean(dict.fromkeys(names, math.nan))
        assert caplog.messages[0].endswith(": m0, m1, m2, m3, m4 and 4 others")

    @pytest.mark.parametrize("odd", [3.0, [1.0], [1.0, 2.0, 3.0]])
    def test_what_does_not_fit_costs_that_metric_alone(self, odd, caplog):
        """The round had no metric at all."""
        found = self.mean({"x": [1.0, 2.0], "loss": 1.0}, {"x": odd, "loss": 3.0})
        assert found == {"loss": 2.0}
        assert caplog.messages[0].endswith(": x")

    def test_finite_ones_cost_no_warning(self, caplog):
        assert self.mean({"loss": 1.0}, {"loss": 3, "x": [0, 1]}) == {
            "loss": 2.0,
            "x": [0.0, 1.0],
        }
        assert not caplog.records


def test_a_run_has_it(no_settling):
    def answer(message):
        metrics = MetricRecord({"num-examples": 1, "loss": 1.0})
        if message.metadata.dst_node_id == 1:
            metrics["accuracy"] = 0.5
        content = {"arrays": message.content["arrays"], "metrics": metrics}
        return Message(RecordDict(content), reply_to=message)

    result = FedBuff(in_flight=3).start(
        HandlerGrid(answer), ArrayRecord({"w": torch.zeros(2)}), num_rounds=1
    )
    for by_round in (
        result.train_metrics_clientapp,
        result.evaluate_metrics_clientapp,
    ):
        assert round(by_round[1]["accuracy"], 6) == 0.5
        assert round(by_round[1]["loss"], 6) == 1.0
