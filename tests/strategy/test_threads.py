"""The server computes on one thread, and leaves the rest of the process all of them."""

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from flwr_asyncdrop import AsyncDrop, LocalGrid
from flwr_asyncdrop.server import assignment, updates
from flwr_asyncdrop.server.callbacks import Callback

THREADS = 3


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    yield
    assert torch.get_num_threads() == THREADS
    torch.set_num_threads(before)


def noting(function, seen):
    def noted(*args, **kwargs):
        seen.append(torch.get_num_threads())
        return function(*args, **kwargs)

    return noted


def test_what_is_cut_and_merged_is_on_one(monkeypatch):
    cut, merged, trained, told, tested = [], [], [], [], []
    monkeypatch.setattr(assignment, "extract", noting(assignment.extract, cut))
    monkeypatch.setattr(updates, "check_fits", noting(updates.check_fits, merged))

    def make_app():
        app = ClientApp()

        @app.train()
        def train(message, context):
            trained.append(torch.get_num_threads())
            metrics = MetricRecord({"num-examples": 1})
            content = RecordDict(
                {"arrays": message.content["arrays"], "metrics": metrics}
            )
            return type(message)(content, reply_to=message)

        return app

    class Told(Callback):
        def on_update(self, state, merged):
            told.append(torch.get_num_threads())

    def evaluate(server_round, arrays):
        tested.append(torch.get_num_threads())
        return MetricRecord({"accuracy": 0.5})

    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    strategy = AsyncDrop(
        model, torch.randn(2, 4), drop_rate=0.25, callbacks=[Told()], in_flight=2
    )
    with LocalGrid(make_app, num_nodes=4, workers=0) as grid:
        strategy.start(grid, ArrayRecord(model.state_dict()), 3, evaluate_fn=evaluate)
    assert set(cut) == set(merged) == {1}
    assert set(trained) == set(told) == set(tested) == {THREADS}
    assert len(cut) >= len(merged) == len(told) == 6
    assert len(tested) == 4
