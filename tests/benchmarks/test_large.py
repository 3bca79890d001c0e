"""The CPU time of an update is that of updates which are merged."""

from itertools import count

import pytest
import torch
from torch import nn

from benchmarks import large
from benchmarks.large import TrainingGrid, measure
from flwr_asyncdrop import AsyncDropPlus, FedBuff


def options():
    """Return a small model that can be narrowed, and its state."""
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    return {"model": model, "example_inputs": torch.zeros(1, 4)}, model.state_dict()


def test_random_masks_are_answered_with_their_own_units():
    """Arrays of another mask with the same shapes would be taken for a liar's."""
    dropping, state = options()
    assert measure(AsyncDropPlus, state, **dropping) > 0


def test_a_task_that_is_lost_is_no_figure(monkeypatch):
    turns = count()

    class Lying(TrainingGrid):
        def trained(self, arrays):
            moved = super().trained(arrays)
            if next(turns) == 5:
                moved.pop(next(iter(moved)))
            return moved

    monkeypatch.setattr(large, "TrainingGrid", Lying)
    with pytest.raises(RuntimeError, match=r"tasks are lost: \{'names': 1\}"):
        measure(FedBuff, options()[1], buffer_size=2)
