"""Planning computes on one thread, where more would wait for each other."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels, verify_plan
from flwr_asyncdrop.submodel.blocks import plan_blocks
from flwr_asyncdrop.submodel.probing import probe, running_passes

THREADS = 3


class Watched(nn.Module):
    """Says how many threads there are in each pass."""

    seen: list[int]

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        Watched.seen.append(torch.get_num_threads())
        return self.inner(x)


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.inner(x)


def perceptron():
    return Watched(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)))


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    Watched.seen = []
    yield
    assert torch.get_num_threads() == THREADS
    torch.set_num_threads(before)


def test_of_a_small_model_until_it_is_trained():
    plan_submodels(perceptron(), torch.randn(2, 4))
    trained = Watched.seen.index(THREADS)
    assert trained > 10
    assert set(Watched.seen[:trained]) == {1}


def test_to_verify():
    model = perceptron()
    plan = plan_submodels(model, torch.randn(2, 4))
    Watched.seen.clear()
    verify_plan(model, torch.randn(2, 4), plan)
    assert Watched.seen.count(1) > Watched.seen.count(THREADS)


def test_of_blocks():
    plan_blocks(Watched(nn.Sequential(Step(), Step())), torch.randn(2, 4))
    assert set(Watched.seen) == {1}


def test_not_where_a_pass_takes_long(monkeypatch):
    monkeypatch.setattr(probe, "_LONG", 0.0)
    plan_submodels(perceptron(), torch.randn(2, 4))
    first, last = Watched.seen.index(THREADS), len(Watched.seen)
    assert 1 in Watched.seen[:first]
    assert set(Watched.seen[first:last]) == {THREADS}


def test_not_of_a_large_model(monkeypatch):
    monkeypatch.setattr(running_passes, "_MANY", 1)
    plan_submodels(perceptron(), torch.randn(2, 4))
    assert set(Watched.seen) == {THREADS}


def test_all_are_back_after_an_error():
    with pytest.raises(UnsupportedModelError):
        plan_submodels(perceptron(), torch.randn(2, 5))
