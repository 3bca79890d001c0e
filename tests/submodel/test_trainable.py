"""Which tensors of a model train."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import frozen_names
from flwr_asyncdrop.submodel.trainable import check_trainable


class Net(nn.Module):
    """A backbone with statistics, and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
        self.head = nn.Linear(4, 2)
        self.head2 = nn.Linear(4, 2, bias=False)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embed.weight


BACKBONE = {f"backbone.{n}" for n in ("0.weight", "0.bias", "1.weight", "1.bias")}
STATISTICS = {f"backbone.1.{n}" for n in ("running_mean", "running_var")}
STATISTICS |= {"backbone.1.num_batches_tracked"}
HEADS = {"head.weight", "head.bias", "head2.weight"}


def frozen(model=None, trainable=None, names=None):
    return frozen_names(names or list(Net().state_dict()), model, trainable)


def test_what_the_module_says():
    net = Net()
    assert frozen(net) == set()
    net.backbone.requires_grad_(False)
    assert frozen(net) == BACKBONE
    net.head.weight.requires_grad_(False)
    assert frozen(net) == BACKBONE | {"head.weight"}


def test_without_a_module_all_train():
    assert frozen() == set()


@pytest.mark.parametrize("net", [None, Net()], ids=["no module", "module"])
def test_names_of_modules_and_parameters(net):
    assert frozen(net, "head") == BACKBONE | {"head2.weight"}
    assert frozen(net, ["head", "head2"]) == BACKBONE
    assert frozen(net, ("head.bias",)) == BACKBONE | HEADS - {"head.bias"}
    assert frozen(net, {"backbone.0"}) == {
        "backbone.1.weight",
        "backbone.1.bias",
        *HEADS,
    }


def test_names_count_more_than_the_module():
    net = Net()
    net.head.requires_grad_(False)
    assert frozen(net, "head") == BACKBONE | {"head2.weight"}


@pytest.mark.parametrize("net", [None, Net()], ids=["no module", "module"])
def test_a_function_is_asked_about_buffers_too(net):
    found = frozen(net, lambda name: name.startswith("head"))
    assert found == BACKBONE | STATISTICS
    assert frozen(net, lambda name: True) == set()


def test_buffers_are_known_by_the_module():
    net = Net()
    net.register_buffer("table", torch.zeros(3))
    names = list(net.state_dict())
    assert "table" not in frozen(net, "head", names)
    assert "table" in frozen(None, "head", names)


@pytest.mark.parametrize("trainable", ["head", "embed", lambda name: "head" in name])
def test_a_tied_parameter_trains_under_all_its_names(trainable):
    names = list(Tied().state_dict())
    assert not {"embed.weight", "head.weight"} & frozen(Tied(), trainable, names)


def test_a_tied_parameter_that_does_not_train():
    net = Tied()
    net.embed.requires_grad_(False)
    names = list(net.state_dict())
    assert frozen(net, None, names) == {"embed.weight", "head.weight"}


def test_only_what_there_is_can_be_frozen():
    net = Net().requires_grad_(False)
    net.head.requires_grad_(True)
    assert frozen(net, None, sorted(HEADS)) == {"head2.weight"}


@pytest.mark.parametrize(
    ("trainable", "hint"),
    [
        ("heads", "did you mean 'head'"),
        ("backbone.0.wieght", "did you mean 'backbone.0.weight'"),
        ("hea", "did you mean 'head'"),
        (["head", "xyz"], "trainable='xyz'"),
    ],
)
def test_a_name_that_is_not_there_is_refused(trainable, hint):
    with pytest.raises(ConfigError, match=hint):
        frozen(Net(), trainable)


def test_a_name_in_a_model_without_tensors_is_refused():
    with pytest.raises(ConfigError, match=r"'head' is no module .* it has no tensors"):
        frozen_names([], nn.ReLU(), "head")


@pytest.mark.parametrize("trainable", ["", [], [1], 3, {"head": 1, 2: 0}, [""], ()])
def test_what_is_no_name_is_refused(trainable):
    with pytest.raises(ConfigError, match="must be a name of a module"):
        check_trainable(trainable)


@pytest.mark.parametrize("trainable", [None, lambda name: "running" in name])
def test_something_must_train(trainable):
    with pytest.raises(ConfigError, match="none of 7 parameters trains"):
        frozen(Net().requires_grad_(False), trainable)
