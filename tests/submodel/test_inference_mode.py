"""Within `torch.inference_mode()` all is as outside of it."""

import pytest
import torch

from flwr_asyncdrop.server.compute_share import compute_share
from flwr_asyncdrop.submodel import (
    extract,
    load_in_place,
    load_submodel,
    plan_blocks,
    plan_submodels,
    savings,
    verify_plan,
)
from tests.runs import mlp, residual_mlp

INPUTS = torch.zeros(2, 4)
PLAN = plan_submodels(mlp(), INPUTS)


def test_planning():
    with torch.inference_mode():
        plan = plan_submodels(mlp(), INPUTS)
        assert plan_blocks(residual_mlp(), INPUTS).blocks
        assert verify_plan(mlp(), INPUTS, plan).groups == PLAN.groups
        assert torch.is_inference_mode_enabled()
    assert plan.groups == PLAN.groups


def test_counting_flops():
    outside = savings(PLAN, mlp(), INPUTS)
    with torch.inference_mode():
        assert savings(PLAN, mlp(), INPUTS) == outside
    assert outside[0].flops > 0


def test_the_share_of_a_submodel():
    """Products of inputs and weights that were both made in it were not counted."""
    shapes = PLAN.shapes_of(PLAN.indices((torch.arange(3), torch.arange(5))))
    outside = compute_share(PLAN, mlp(), INPUTS)((), shapes)
    with torch.inference_mode():
        share = compute_share(PLAN, mlp(), torch.zeros(2, 4))
        assert share((), shapes) == outside


@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_what_is_loaded_trains(load):
    model = mlp()
    sub = extract(model.state_dict(), PLAN.indices((torch.arange(3), torch.arange(5))))
    with torch.inference_mode():
        small = load(model, sub)
    small(INPUTS + 1).sum().backward()
    assert small[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_a_model_that_was_made_in_it_can_be_loaded_in_it(load):
    keep = torch.arange(3), torch.arange(5)
    sub = extract(mlp().state_dict(), PLAN.indices(keep))
    expected = load_submodel(mlp(), sub)(INPUTS + 1)
    with torch.inference_mode():
        model = mlp()
        assert load(model, mlp().state_dict())(INPUTS).shape == (2, 3)
        assert torch.equal(load(model, sub)(INPUTS + 1), expected)
        assert plan_submodels(mlp(), INPUTS).groups == PLAN.groups
