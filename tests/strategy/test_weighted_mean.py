"""Metrics that some clients lack: Flower's own function counts them as 0."""

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
