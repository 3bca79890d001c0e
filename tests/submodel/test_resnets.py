"""Real networks: torchvision's ResNets and the CIFAR-style ones of this package."""

import math

import pytest
import torch

from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels, step_flops
from tests.nightly import nightly
from tests.submodel.networks import images
from tests.submodel.silencing import random_keep, run, silenced


@pytest.fixture(scope="module")
def resnet34():
    return build_model("resnet34", (3, 32, 32), 10, seed=0)


def blocks(model):
    """Name the residual blocks: the modules that hold a second convolution."""
    return [
        n.removesuffix(".conv2")
        for n, _ in model.named_modules()
        if n.endswith("conv2")
    ]


def elements(state):
    return sum(math.prod(tensor.shape) for tensor in state.values())


def test_internal_units_of_resnet34_lie_between_the_convolutions(resnet34):
    plan = plan_submodels(resnet34, images(3, 16, 1), scope="internal")

    names = blocks(resnet34)
    assert len(names) == 3 + 4 + 6 + 3
    assert [group.name for group in plan.groups] == [f"{name}.conv1" for name in names]
    expected = {}
    for name in names:
        expected[f"{name}.conv1.weight"] = [0]
        for key in ("weight", "bias", "running_mean", "running_var"):
            expected[f"{name}.bn1.{key}"] = [0]
        expected[f"{name}.conv2.weight"] = [1]
    assert {name: list(dims) for name, dims in plan.axes.items()} == expected


def test_rounding_is_no_other_gradient():
    """Batches of one digit are normalised over few values, in single precision."""
    model = build_model("resnet18", (1, 8, 8), 10, seed=0)
    x = torch.randn(1, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    plan = plan_submodels(model, x)
    streams = [group.size for group in plan.groups if group.kind == "residual"]
    assert streams == [64, 128, 256, 512]
    assert len(plan.groups) == 8 + 4


def test_all_units_of_resnet34(resnet34):
    plan = plan_submodels(resnet34, images(3, 16, 1))

    streams = [group for group in plan.groups if group.kind == "residual"]
    assert [group.size for group in streams] == [64, 128, 256, 512]
    assert len(plan.groups) == 16 + 4

    state = resnet34.state_dict()
    sub = extract(state, plan.indices(random_keep(plan, seed=0, rate=0.25)))
    small = load_submodel(resnet34, sub)

    assert 0.55 < elements(sub) / elements(state) < 0.57
    flops = [step_flops(model, images(3, 32, 1).float()) for model in (small, resnet34)]
    assert 0.55 < flops[0] / flops[1] < 0.58


@pytest.mark.parametrize("name", ["resnet18", nightly("resnet50")])
def test_torchvision(vision_models, name):
    inputs = images(3, 64, 1)
    model = getattr(vision_models, name)(num_classes=10).double().eval()
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, seed=0, rate=0.25))

    small = load_submodel(model, extract(model.state_dict(), indices), scale=False)

    assert sum(group.kind == "residual" for group in plan.groups) == 4
    with torch.no_grad():
        expected = run(model, silenced(model, plan, indices), inputs)
        torch.testing.assert_close(small(inputs), expected)
