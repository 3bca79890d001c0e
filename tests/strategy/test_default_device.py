"""A run is the same whatever device, and dtype, tensors are made on by default."""

from contextlib import contextmanager
from functools import partial

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import (
    AsyncDrop,
    AsyncDropPlus,
    AsyncFjord,
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


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def net():
    single = default_dtype(torch.float32)
    with torch.random.fork_rng(), torch.device("cpu"), single:
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
    model = net()
    inputs = torch.zeros(1, 4, device="cpu", dtype=torch.float32)
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


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    ("strategy", "codec"),
    [
        # A share of units that is no whole number, so that one is drawn.
        (partial(AsyncDrop, drop_rate=0.3), "none"),
        (partial(HeteroAsyncDrop, drop_rate=0.3), "q4"),
        # What coding has cost is kept.
        (AsyncFjord, "topk-q4"),
    ],
)
def test_a_run_beside_another_default_dtype(strategy, codec, dtype):
    expected = wire.from_record(run(strategy, codec))
    with default_dtype(dtype):
        found = wire.from_record(run(strategy, codec))
    assert all(torch.equal(found[name], expected[name]) for name in expected)
