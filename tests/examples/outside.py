"""What tests of `examples/baselines` share."""

import sys
from pathlib import Path

import pytest
import torch

from flwr_asyncdrop.aggregation import Update

FOLDER = Path(__file__).parents[2] / "examples" / "baselines"


@pytest.fixture
def outside(monkeypatch):
    """The package of the example can be imported."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in [name for name in sys.modules if name.startswith("baselines")]:
        del sys.modules[name]


def sends(change, device=0, staleness=0, rank=0):
    """An update of a few weights that a device has moved so far."""
    change = torch.as_tensor(change, dtype=torch.float32).reshape(-1)
    base = torch.full_like(change, 10.0)
    return Update(
        {"w": base + change},
        {},
        staleness,
        1,
        {"w": base},
        rank=rank,
        num_ranks=2,
        device=device,
        num_devices=4,
    )


def walk(aggregator, updates):
    """Return the weights after each update, from 0 on; one weight is a number."""
    size = updates[0].arrays["w"].numel()
    state, path = {"w": torch.zeros(size)}, []
    for number, update in enumerate(updates):
        if number == len(updates) // 2:  # as after a resume
            saved = aggregator.state_dict()
            aggregator.load_state_dict(saved)
        aggregator.merge(state, update)
        path.append([round(value, 6) for value in state["w"].tolist()])
    return [each[0] for each in path] if size == 1 else path
