from contextlib import nullcontext

import torch

from flwr_asyncdrop.checkpoint import Checkpoints
from flwr_asyncdrop.checkpoint.saving import Saving
from flwr_asyncdrop.server.signals import Signals
from flwr_asyncdrop.server.state import RunState

TOLD = {"algo": "asyncdrop", "seed": 1}


def test_a_run_without_checkpoints_begins():
    saving, signals = Saving.open(None, TOLD), Signals()
    begun = RunState.start_from({"w": torch.zeros(2)}, seed=1)
    assert saving == Saving(None, None)
    assert saving.state(begun) is begun
    assert saving.session() is None
    assert saving.devices == 0
    assert isinstance(saving.guard(signals), nullcontext)


def test_a_run_with_checkpoints_keeps_signals_back(tmp_path):
    signals = Signals()
    saving = Saving.open(Checkpoints(tmp_path), TOLD)
    assert saving.checkpoint is None
    assert saving.guard(signals) is signals


def test_what_the_caller_says_of_its_settings_goes_first(tmp_path):
    checkpoints = Checkpoints(tmp_path, settings={"seed": 2, "lr": 0.1})
    saving = Saving.open(checkpoints, TOLD)
    assert saving.checkpoints is not None
    assert saving.checkpoints.settings == {"algo": "asyncdrop", "seed": 2, "lr": 0.1}
    assert checkpoints.settings == {"seed": 2, "lr": 0.1}
