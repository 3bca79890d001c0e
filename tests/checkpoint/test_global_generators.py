"""What a ClientApp draws from global generators: a run that resumes does as before."""

import pytest
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp

from flwr_asyncdrop import wire
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.fleet.profiles import speed_levels
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid
from tests.runs import answer
from tests.strategies import STRATEGIES


def drawing():
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = wire.from_record(message.content["arrays"])
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


def train(folder, *callbacks, resume=None):
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
        return wire.from_record(strategy.start(grid, arrays, num_rounds=5).arrays)


def test_what_is_drawn_after_a_resume_is_what_would_have_been(tmp_path):
    whole = train(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "stopped", StopsAt(7))
    resumed = train(tmp_path / "stopped", resume=tmp_path / "stopped")
    assert torch.equal(resumed["w"], whole["w"])
