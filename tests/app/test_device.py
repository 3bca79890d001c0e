import copy
import os

import pytest
import torch

from flwr_asyncdrop.app.device import best_device
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.app.training import LocalTraining
from flwr_asyncdrop.seeding import torch_generator

CUBLAS = "CUBLAS_WORKSPACE_CONFIG"

on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.fixture
def plain(monkeypatch):
    """A process that has not asked for a device yet."""
    monkeypatch.setenv(CUBLAS, "")
    monkeypatch.delenv(CUBLAS)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", False)
    best_device.cache_clear()
    yield
    best_device.cache_clear()


def test_a_gpu_is_asked_for_the_same_bits(plain, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert best_device() == torch.device("cuda")
    assert torch.backends.cudnn.deterministic
    assert os.environ[CUBLAS] == ":4096:8"


def test_what_the_user_has_set_stays(plain, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(CUBLAS, ":16:8")
    best_device()
    assert os.environ[CUBLAS] == ":16:8"


def test_without_a_gpu_nothing_is_set(plain, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert best_device() == torch.device("cpu")
    assert not torch.backends.cudnn.deterministic
    assert CUBLAS not in os.environ


class Plain:
    """The local objective of an algorithm that has none of its own."""

    def loss(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets)

    def adjust_gradients(self):
        pass


def trained(model, inputs):
    """Train a copy of the model on the best device; return its weights."""
    device = best_device()
    network = copy.deepcopy(model).to(device)
    targets = torch.arange(len(inputs)) % 2
    LocalTraining(steps=20, batch_size=32, lr=0.05, momentum=0.9).train(
        network,
        Plain(),
        lambda at: (inputs[at].to(device), targets[at].to(device)),
        len(inputs),
        torch_generator(0, "order"),
    )
    return [weight.cpu() for weight in network.state_dict().values()]


@on_a_gpu
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet10", "lstm", "transformer"])
def test_a_task_gives_the_same_bits_on_a_gpu(name):
    if name in ("lstm", "transformer"):
        inputs = torch.randint(50, (64, 40), generator=torch_generator(0, "tokens"))
        model = build_model(name, (40,), 2, seed=0, vocabulary=50)
    else:
        inputs = torch.rand(64, 3, 32, 32, generator=torch_generator(0, "images"))
        model = build_model(name, (3, 32, 32), 2, seed=0)
    first = trained(model, inputs)
    for _ in range(3):
        again = trained(model, inputs)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
