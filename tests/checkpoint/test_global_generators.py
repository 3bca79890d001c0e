"""What a ClientApp draws from global generators: a run that resumes does as before."""

import threading
import time

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from flwr.clientapp import ClientApp

from flwr_asyncdrop import wire
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid
from tests.runs import answer
from tests.strategies import STRATEGIES


def drawing():
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = wire.from_record(message.content["arrays"])
        time.sleep(0.002)
        drawn = {name: tensor + torch.rand(3) for name, tensor in arrays.items()}
        return answer(message, drawn)

    return app


class StopsAt(Callback):
    """Ctrl-C at an update."""

    def __init__(self, update):
        self.update = update

    def on_update(self, state, merged):
        if state.updates == self.update:
            raise KeyboardInterrupt


def train(folder, *callbacks, resume=None, evaluate_fn=None):
    torch.manual_seed(1)
    strategy = STRATEGIES["async-fedavg"](
        in_flight=2,
        fleet=speed_levels,
        fraction_evaluate=0.0,
        callbacks=callbacks,
        checkpointer=Checkpointer(folder, resume=resume, every=1),
    )
    with LocalGrid(drawing, num_nodes=4, workers=0) as grid:
        arrays = ArrayRecord({"w": torch.zeros(3)})
        result = strategy.start(grid, arrays, num_rounds=5, evaluate_fn=evaluate_fn)
        return wire.from_record(result.arrays)


def test_what_is_drawn_after_a_resume_is_what_would_have_been(tmp_path):
    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", StopsAt(7))
    resumed = train(tmp_path / "stopped", resume=tmp_path / "stopped")
    assert torch.equal(resumed["w"], whole["w"])


def test_what_an_evaluate_fn_draws_in_this_process_no_client_lacks(tmp_path):
    def evaluate(server_round, arrays):
        for _ in range(30):  # as every pass over a DataLoader does
            torch.rand(1)
            time.sleep(0.001)
        return MetricRecord({"round": server_round})

    alone = train(tmp_path / "alone")
    evaluated = train(tmp_path / "evaluated", evaluate_fn=evaluate)
    assert torch.equal(evaluated["w"], alone["w"])


def test_an_evaluate_fn_that_draws_nothing_runs_beside_the_clients(tmp_path):
    updated = threading.Event()

    class Updated(Callback):
        def on_update(self, state, merged):
            updated.set()

    def evaluate(server_round, arrays):
        assert updated.wait(300)
        return MetricRecord({"round": server_round})

    evaluate.draws_nothing = True
    train(tmp_path, Updated(), evaluate_fn=evaluate)
