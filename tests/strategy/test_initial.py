import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from torch import nn

from flwr_asyncdrop import AsyncDrop, AsyncFedAvg, FedBuff
from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.submodel import plan_submodels
from tests.grids import HandlerGrid
from tests.runs import plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")

INPUTS = torch.zeros(2, 4)


def net(width=8, classes=3):
    hidden = nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU()
    return nn.Sequential(*hidden, nn.Linear(width, classes))


PLAN = plan_submodels(net(), INPUTS)  # once, since planning takes long


def without(state, name):
    return {key: value for key, value in state.items() if key != name}


def start(arrays, strategy=None):
    settings = {"in_flight": 2, "fleet": speed_levels}
    strategy = strategy or AsyncDrop(net(), INPUTS, plan=PLAN, **settings)
    grid = HandlerGrid(plus_one)
    try:
        strategy.start(grid, arrays, num_rounds=1)
    finally:
        assert not grid.pushed, "a device has trained"


def test_those_of_the_planned_model_are_taken():
    for kind in (torch.float32, torch.float64, torch.float16):
        with pytest.raises(AssertionError, match="a device has trained"):
            start(record(net().to(kind).state_dict()))


OTHERS = {
    "wider": (net(16).state_dict(), r"'0.bias' is \(16,\) in them and \(8,\) in the"),
    "narrower": (net(6).state_dict(), r"'0.bias' is \(6,\) in them and \(8,\)"),
    "classes": (net(8, 10).state_dict(), r"'3.bias' is \(10,\) in them and \(3,\)"),
    "names": (
        {f"net.{name}": value for name, value in net().state_dict().items()},
        r"'0.bias' is not there in them .*the module that the plan was made of",
    ),
    "compiled": (
        {f"_orig_mod.{name}": value for name, value in net().state_dict().items()},
        r"'0.bias' is not there in them .* without its wrapper",
    ),
    "lacks-weight": (
        without(net().state_dict(), "3.bias"),
        r"'3.bias' is not there in them",
    ),
    "lacks-buffer": (
        without(net().state_dict(), "1.num_batches_tracked"),
        r"'1.num_batches_tracked' is not there in them and \(\) in the plan",
    ),
    "adds": (net().state_dict() | {"gate": torch.ones(3)}, r"'gate' is .* not there"),
}


@pytest.mark.parametrize("which", OTHERS)
def test_those_of_another_model_than_the_planned_one_are_refused(which):
    state, what = OTHERS[which]
    with pytest.raises(ConfigError, match=what):
        start(record(state))


@pytest.mark.parametrize(
    ("initial", "fix"),
    [
        (nn.DataParallel(net()).state_dict(), "without its wrapper"),
        (ArrayRecord([np.zeros(2)]), "an ArrayRecord of a list has numbers for names"),
    ],
    ids=["wrapper", "list"],
)
def test_other_names_than_the_models_are_refused(initial, fix):
    """Its frozen part was trained, and travelled, with every task."""
    model = net().requires_grad_(False)
    model[0].requires_grad_(True)
    with pytest.raises(
        ConfigError, match=f"none of the names of the Sequential .*{fix}"
    ):
        start(record(initial), AsyncFedAvg(model, in_flight=2))


@pytest.mark.parametrize("kind", [torch.int64, torch.complex64])
@pytest.mark.parametrize("drops", [True, False])
def test_numbers_of_another_kind_than_the_models_are_refused(kind, drops):
    state = {name: value.to(kind) for name, value in net().state_dict().items()}
    strategy = None if drops else AsyncFedAvg(net(), in_flight=2)
    with pytest.raises(ConfigError, match=f"'0.weight' is of {kind}.*Sequential"):
        start(record(state), strategy)


@pytest.mark.parametrize(
    ("arrays", "what"),
    [
        (net().state_dict(), "an OrderedDict"),
        (net(), "a Sequential"),
        (None, "None"),
        (ArrayRecord(), "empty"),
    ],
    ids=["state", "module", "none", "empty"],
)
def test_what_is_no_record_of_arrays_is_refused(arrays, what):
    with pytest.raises(ConfigError, match=rf"initial_arrays is {what}: pass Array"):
        start(arrays)


def test_a_list_of_arrays_has_lost_its_names():
    arrays = ArrayRecord([tensor.numpy() for tensor in net().state_dict().values()])
    with pytest.raises(ConfigError, match="an ArrayRecord of a list has numbers for"):
        start(arrays)


@pytest.mark.parametrize(
    "array",
    [Array(np.array(["a", "b"])), Array("float32", (2,), "my.codec", b"12345678")],
    ids=["texts", "codec"],
)
def test_what_is_no_array_of_numbers_is_named(array):
    with pytest.raises(ConfigError, match=r"^initial_arrays: 'names' cannot be read: "):
        start(ArrayRecord({"w": Array(np.zeros(2)), "names": array}), AsyncFedAvg())


@pytest.mark.parametrize("content", [b"", b"trees"])
def test_bytes_are_refused_as_they_would_not_be_averaged(content):
    trees = ArrayRecord([np.frombuffer(content, np.uint8)])
    with pytest.raises(ConfigError, match=r"floating-point numbers \(torch.uint8\)"):
        start(trees, FedBuff())


def test_bytes_are_for_an_aggregator_of_ones_own():
    strategy = AsyncFedAvg(aggregator=Mixing(1.0))
    with pytest.raises(AssertionError, match="a device has trained"):
        start(ArrayRecord([np.ones(3, np.int64)]), strategy)
