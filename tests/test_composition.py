"""Flower's own parts keep working around these strategies."""

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, arrays_size_mod, fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

from flwr_asyncdrop import (
    AsyncFedAvg,
    HeteroAsyncDrop,
    LocalGrid,
    load_submodel,
    speed_levels,
)
from flwr_asyncdrop.server.callbacks import Callback
from tests.runs import mlp

CLIP = 0.01
pytestmark = pytest.mark.usefixtures("no_settling")


def client_app(*mods):
    """Build a client as users write it: load, change the weights, reply."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        model = load_submodel(mlp(), message.content["arrays"])
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        content = RecordDict(
            {
                "arrays": ArrayRecord(model.state_dict()),
                "metrics": MetricRecord({"num-examples": 2, "loss": 0.5}),
            }
        )
        return Message(content, reply_to=message)

    return app


def plain():
    return client_app()


def clipping():
    return client_app(fixedclipping_mod, arrays_size_mod)


def private():
    return client_app(LocalDpMod(CLIP, sensitivity=1e-6, epsilon=10.0, delta=1e-5))


class Updates(Callback):
    """Notes how far each reply is from the kept part of the model it meets."""

    def __init__(self):
        self.shapes, self.failures = [], []

    def on_update(self, state, merged):
        self.shapes.append({n: tuple(t.shape) for n, t in merged.reply.arrays.items()})

    def on_failure(self, state, order, kind, reason):
        self.failures.append(reason)


def run(build_app, train_config=None):
    updates = Updates()
    strategy = HeteroAsyncDrop(
        mlp(),
        torch.zeros(1, 4),
        in_flight=1,
        alpha=1.0,
        fleet=speed_levels,
        callbacks=[updates],
    )
    with LocalGrid(build_app, num_nodes=3, workers=0) as grid:
        result = strategy.start(
            grid,
            ArrayRecord(mlp().state_dict()),
            num_rounds=1,
            train_config=ConfigRecord(train_config or {}),
        )
    return updates, result.arrays.to_torch_state_dict()


def moved(arrays):
    initial = mlp().state_dict()
    return np.sqrt(sum(float(((arrays[n] - initial[n]) ** 2).sum()) for n in initial))


def test_fixed_clipping_clips_the_update_of_a_submodel():
    updates, arrays = run(clipping, {"clipping_norm": CLIP})
    assert updates.failures == []
    assert updates.shapes[0]["0.weight"] == (5, 4)  # 6 units, a quarter less
    assert moved(arrays) == pytest.approx(CLIP, rel=1e-3)
    assert moved(run(plain)[1]) > 1


def test_local_differential_privacy_clips_and_adds_noise():
    updates, arrays = run(private)
    assert updates.failures == []
    assert moved(arrays) == pytest.approx(CLIP, rel=0.05)


def test_flowers_privacy_wrapper_drives_the_synchronous_hooks():
    strategy = DifferentialPrivacyClientSideFixedClipping(
        AsyncFedAvg(in_flight=3, alpha=1.0, fleet=speed_levels),
        noise_multiplier=0.0,
        clipping_norm=CLIP,
        num_sampled_clients=3,
    )
    with LocalGrid(clipping, num_nodes=3, workers=0) as grid:
        result = strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=1)
    assert result.train_metrics_clientapp[1]["loss"] == pytest.approx(0.5)
    assert moved(result.arrays.to_torch_state_dict()) == pytest.approx(CLIP, rel=1e-3)


def test_metrics_aggregation_functions_get_flowers_arguments():
    calls = []

    def aggregate(records, key):
        calls.append((len(records), key))
        losses = [record["metrics"]["loss"] for record in records]
        return MetricRecord({"mean-loss": sum(losses) / len(losses)})

    strategy = AsyncFedAvg(
        in_flight=3, fleet=speed_levels, train_metrics_aggr_fn=aggregate
    )
    with LocalGrid(plain, num_nodes=3, workers=0) as grid:
        result = strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=2)
    assert calls == [(3, "num-examples")] * 2
    assert result.train_metrics_clientapp[2]["mean-loss"] == 0.5
