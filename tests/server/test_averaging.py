"""The average of versions: what is evaluated and returned, and what is not."""

import pytest
import torch
from flwr.app import MetricRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import speed_levels
from flwr_asyncdrop.strategy.named import AsyncFedAvg, FedBuff
from tests.grids import HandlerGrid
from tests.runs import Recorder, plus_one, record

ROUNDS, DEVICES = 3, 4


def run(strategy, **changes):
    """Return the versions of the model, what was evaluated, sent and returned."""
    recorder, evaluated = Recorder(), {}

    def evaluate(number, arrays):
        evaluated[number] = wire.from_record(arrays)["w"][0].item()
        return MetricRecord({"loss": 0.0})

    grid = HandlerGrid(plus_one, node_ids=range(1, DEVICES + 1))
    settings = {"in_flight": DEVICES, "fleet": speed_levels, "fraction_evaluate": 0.0}
    result = strategy(callbacks=[recorder], **settings, **changes).start(
        grid,
        record({"w": torch.zeros(2)}),
        num_rounds=ROUNDS,
        evaluate_fn=evaluate,
    )
    sent = [wire.from_record(m.content["arrays"])["w"][0].item() for m in grid.pushed]
    returned = wire.from_record(result.arrays)["w"][0].item()
    return recorder.weights, evaluated, sent, returned


def average(versions, decay):
    weights = [
        decay ** (len(versions) - place) for place in range(1, len(versions) + 1)
    ]
    pairs = zip(weights, versions, strict=True)
    return sum(weight * version for weight, version in pairs) / sum(weights)


@pytest.mark.usefixtures("no_settling")
def test_the_average_is_evaluated_and_returned_and_the_model_is_sent():
    versions, evaluated, sent, returned = run(AsyncFedAvg, averaging=0.5)
    assert evaluated[0] == 0.0
    for number in range(1, ROUNDS + 1):
        wanted = average(versions[: number * DEVICES], 0.5)
        assert evaluated[number] == pytest.approx(wanted)
        assert evaluated[number] != pytest.approx(versions[number * DEVICES - 1])
    assert returned == pytest.approx(average(versions, 0.5))
    # What devices train does not know of the average.
    assert (versions, sent) == (run(AsyncFedAvg)[0], run(AsyncFedAvg)[2])


@pytest.mark.usefixtures("no_settling")
def test_without_an_average_the_latest_version_is_served():
    versions, evaluated, _, returned = run(AsyncFedAvg)
    assert returned == versions[-1]
    assert evaluated[ROUNDS] == versions[-1]


@pytest.mark.usefixtures("no_settling")
def test_a_buffered_version_counts_once():
    versions, _, _, returned = run(FedBuff, averaging=0.5, buffer_size=2)
    assert returned == pytest.approx(average(versions[1::2], 0.5))


def test_a_model_of_half_precision_is_served_as_such():
    half = {"w": torch.zeros(2, dtype=torch.float16)}
    strategy = AsyncFedAvg(averaging=0.5, fleet=speed_levels, fraction_evaluate=0.0)
    result = strategy.start(HandlerGrid(plus_one), record(half), num_rounds=1)
    assert wire.from_record(result.arrays)["w"].dtype == torch.float16


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range_is_refused(decay):
    with pytest.raises(ConfigError, match=f"averaging={decay}"):
        AsyncFedAvg(averaging=decay)
