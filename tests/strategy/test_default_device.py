"""A run is the same whatever device tensors are made on by default."""

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    AsyncDropPlus,
    CodecMod,
    HeteroAsyncDrop,
    LocalGrid,
    load_personal,
    load_submodel,
    save_personal,
    speed_levels,
    wire,
)

pytestmark = pytest.mark.usefixtures("no_settling")


def net():
    with torch.random.fork_rng(), torch.device("cpu"):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 3))


def make_app():
    app = ClientApp(mods=[CodecMod()])

    @app.train()
    def train(message, context):
        model = load_submodel(net(), message.content["arrays"])
        load_personal(context, model, message, "2.bias")
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 1.5
        save_personal(context, model, message, "2.bias")
        metrics = MetricRecord({"num-examples": 1})
        content = RecordDict(
            {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}
        )
        return type(message)(content, reply_to=message)

    return app


def run(strategy, codec):
    model, inputs = net(), torch.zeros(1, 4, device="cpu")
    options = {"fleet": speed_levels, "codec": codec, "fraction_evaluate": 0.0}
    algorithm = strategy(model, inputs, in_flight=2, **options)
    with LocalGrid(make_app, num_nodes=4, workers=0) as grid:
        start = ArrayRecord(model.state_dict())
        return algorithm.start(grid, start, num_rounds=6).arrays


@pytest.mark.parametrize("codec", ["none", "topk-q4"])
@pytest.mark.parametrize("strategy", [AsyncDrop, HeteroAsyncDrop, AsyncDropPlus])
def test_a_run_beside_another_default_device(strategy, codec):
    expected = wire.from_record(run(strategy, codec))
    with torch.device("meta"):
        found = wire.from_record(run(strategy, codec))
        assert torch.zeros(1).is_meta
    assert all(torch.equal(found[name], expected[name]) for name in expected)
