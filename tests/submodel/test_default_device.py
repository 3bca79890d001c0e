"""Where tensors lie that nobody said a device for makes no difference to planning."""

import peft
import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel import (
    declare_plan,
    lora_plan,
    plan_blocks,
    plan_submodels,
    savings,
    verify_plan,
)
from flwr_asyncdrop.submodel.default_device import cpu_by_default, given_default
from tests.runs import mlp, residual_mlp

INPUTS = torch.zeros(2, 4)
PLAN = plan_submodels(mlp(), INPUTS)


class Noisy(nn.Module):
    """Makes tensors of its own, on the default device."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x):
        noise = torch.randn(x.shape[0], 1) if self.training else torch.zeros(1)
        return self.head(self.inner(x).relu() + noise)


@pytest.mark.parametrize("build", [mlp, Noisy])
def test_planning_on_the_device_meta(build):
    model, expected = build(), plan_submodels(build(), INPUTS)
    with torch.device("meta"):
        blank = plan_submodels(build(), torch.zeros(2, 4))
        plan = plan_submodels(model, INPUTS)
        assert torch.zeros(1).is_meta
    for found in (blank, plan):
        assert (found.groups, found.left_out) == (expected.groups, expected.left_out)
        places = [units for dims in found.axes.values() for units in dims.values()]
        assert {units.device.type for units in places} == {"cpu"}


def test_all_else_that_plans_on_the_device_meta():
    model, blocks = mlp(), residual_mlp()
    units = {"first": {"0.weight": 0, "0.bias": 0, "2.weight": 1}}
    adapted = peft.get_peft_model(mlp(), peft.LoraConfig(r=4, target_modules=["0"]))
    costs = savings(PLAN, model, INPUTS)
    with torch.device("meta"):
        declared = declare_plan(PLAN.shapes, units)
        assert verify_plan(model, INPUTS, declared).groups == declared.groups
        assert plan_blocks(blocks, INPUTS).blocks
        assert lora_plan(adapted, INPUTS).groups
        assert savings(PLAN, model, INPUTS) == costs


def test_the_users_model_runs_with_the_users_default():
    with torch.device("cuda:0"), cpu_by_default():
        assert torch.zeros(1).device.type == "cpu"
        with given_default():
            assert torch.get_default_device().type == "cuda"
        with cpu_by_default(), given_default():
            assert torch.get_default_device().type == "cuda"
    with torch.device("meta"), cpu_by_default(), given_default():
        assert torch.zeros(1).device.type == "cpu"
