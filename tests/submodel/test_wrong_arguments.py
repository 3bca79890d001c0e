"""What is no module, and no example input, is refused in one line."""

import numpy as np
import pytest
import torch
from torch import nn

from flwr_asyncdrop import HeteroAsyncDrop
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import (
    load_in_place,
    load_submodel,
    plan_blocks,
    plan_submodels,
    savings,
    step_flops,
    verify_plan,
)
from tests.submodel.networks import vectors


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))


PLAN = plan_submodels(Net(), vectors())
USES = {
    "plan_submodels": lambda model: plan_submodels(model, vectors()),
    "plan_blocks": lambda model: plan_blocks(model, vectors()),
    "verify_plan": lambda model: verify_plan(model, vectors(), PLAN),
    "savings": lambda model: savings(PLAN, model, vectors()),
    "step_flops": lambda model: step_flops(model, vectors()),
    "load_submodel": lambda model: load_submodel(model, Net().state_dict()),
    "load_in_place": lambda model: load_in_place(model, Net().state_dict()),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_class_in_place_of_a_module(use):
    with pytest.raises(ConfigError, match=r"^model=Net is a class: .* Net\(\.\.\.\)$"):
        use(Net)


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_what_is_no_module(use):
    with pytest.raises(ConfigError, match=r"^model, None, is no nn.Module"):
        use(None)


def test_a_strategy_says_so_too():
    with pytest.raises(ConfigError, match=r"^model=Net is a class"):
        HeteroAsyncDrop(Net, vectors())
    with pytest.raises(ConfigError, match=r"^model=tensor.* is no nn.Module.*keywords"):
        HeteroAsyncDrop(torch.zeros(3, 4), vectors())


@pytest.mark.parametrize(
    ("inputs", "kind"),
    [
        (3, "int"),
        (None, "NoneType"),
        ("ones", "str"),
        (np.zeros((2, 5)), "numpy.ndarray"),
        ([vectors(), 3.5], "float"),
    ],
    ids=["int", "none", "str", "numpy", "listed"],
)
def test_what_is_no_example_input(inputs, kind):
    for use in (plan_submodels, HeteroAsyncDrop):
        if inputs is None and use is HeteroAsyncDrop:
            continue  # it asks for them in other words
        with pytest.raises(ConfigError, match=rf"^example_inputs of type {kind} are"):
            use(Net(), inputs)


def test_an_empty_list_is_no_forward_pass():
    for use in (plan_submodels, HeteroAsyncDrop):
        with pytest.raises(
            ConfigError, match=r"example_inputs=\[\] has no forward pass"
        ):
            use(Net(), [])
