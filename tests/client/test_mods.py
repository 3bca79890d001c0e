"""Mods that are given as they should not be."""

import pytest
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod
from torch import nn

from flwr_asyncdrop import AsyncFedAvg, CapacityMod, CodecMod, FrozenMod, LocalGrid
from flwr_asyncdrop.exceptions import ConfigError, RunError
from tests.runs import answer, mlp

pytestmark = pytest.mark.usefixtures("no_settling")


def why(*mods, trainable="4"):
    """Return why a run ends whose client has these mods."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message, context):
        return answer(message, message.content["arrays"].to_torch_state_dict())

    strategy = AsyncFedAvg(in_flight=2, trainable=trainable, fraction_evaluate=0.0)
    with (
        LocalGrid(lambda: app, num_nodes=2, workers=0) as grid,
        pytest.raises(RunError) as caught,
    ):
        strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=1)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mod", [CapacityMod, CodecMod, FrozenMod])
def test_a_class_in_place_of_an_object(mod):
    name = mod.__name__
    assert f"has the class in it: pass an object, mods=[{name}()]" in why(mod)


def test_a_class_of_flowers():
    reason = why(LocalDpMod)
    assert "has the class in it: pass an object, LocalDpMod(clipping_norm" in reason


@pytest.mark.parametrize("mod", [CapacityMod, CodecMod, FrozenMod])
def test_their_own_arguments_are_still_checked(mod):
    assert isinstance(mod(), mod)
    with pytest.raises(TypeError):
        mod(1, 2, 3)
    with pytest.raises(TypeError):
        mod(unknown=1)


class Net(nn.Linear):
    def __init__(self):
        super().__init__(2, 2)


@pytest.mark.parametrize(
    ("own", "what"),
    [
        (Net(), "a Net"),
        (Net().state_dict(), "an OrderedDict"),
        (Net, "the class Net"),
        (LocalDpMod, "the class LocalDpMod"),
        ("net.pt", "a str"),
    ],
)
def test_a_model_in_place_of_the_function_that_makes_it(own, what):
    with pytest.raises(ConfigError, match=rf"own=\.\.\.\) is {what}: .*lambda context"):
        FrozenMod(own)


def test_a_function_that_returns_no_model():
    assert "own=...) returned a tuple: return the model" in why(
        FrozenMod(lambda context: (mlp(), 1))
    )


@pytest.mark.parametrize(
    ("mods", "what"),
    [
        (CodecMod(), r"train_mods=\.\.\.\) is a CodecMod: pass a list"),
        ([LocalDpMod], "has LocalDpMod in it"),
        ([None], "has None in it"),
        ([CodecMod()], "has a CodecMod in it, which evaluations and probes need"),
        ([CapacityMod()], "has a CapacityMod in it"),
        ([FrozenMod()], "has a FrozenMod in it"),
        ("mods", "has a str in it"),
    ],
)
def test_train_mods_that_are_none(mods, what):
    with pytest.raises(ConfigError, match=what):
        FrozenMod(train_mods=mods)
