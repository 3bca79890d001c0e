"""1/keep scaling of what flows into narrowed layers."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels
from flwr_asyncdrop.submodel.narrow import InputScale
from tests.submodel.networks import (
    ResidualNet,
    SeparableConv,
    images,
    seeded,
    vectors,
)


def factors(model):
    return {
        name: hook.factor
        for name, module in model.named_modules()
        for hook in module._forward_pre_hooks.values()
    }


def half(model, inputs):
    plan = plan_submodels(model, inputs)
    keep = tuple(torch.arange(group.size // 2) for group in plan.groups)
    return extract(model.state_dict(), plan.indices(keep))


def test_sum_over_fewer_units_keeps_its_size():
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)).double()
    nn.init.zeros_(model[0].weight)
    nn.init.ones_(model[0].bias)
    nn.init.ones_(model[1].weight)

    small = load_submodel(model, half(model, vectors()), scale=True)

    torch.testing.assert_close(small(vectors()), model(vectors()))


def test_consumers_are_scaled_and_per_channel_layers_are_not():
    model = seeded(SeparableConv)

    small = load_submodel(model, half(model, images()), scale=True)

    assert factors(small) == {"pointwise": 2.0, "head": 2.0}


def test_flattened_channels():
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.Flatten(), nn.Linear(6 * 36, 3))

    small = load_submodel(model, half(model, images(1)), scale=True)

    assert factors(small) == {"2": 2.0}


def test_gradients_are_scaled_too_and_weights_are_not():
    model = nn.Sequential(nn.Linear(5, 8), nn.Linear(8, 3)).double()
    state = half(model, vectors())
    scaled = load_submodel(model, state, scale=True)
    plain = load_submodel(model, state, scale=False)

    for small in (scaled, plain):
        small(vectors()).sum().backward()

    assert torch.equal(scaled[1].weight, plain[1].weight)
    torch.testing.assert_close(scaled[1].weight.grad, 2 * plain[1].weight.grad)
    torch.testing.assert_close(scaled[0].weight.grad, 2 * plain[0].weight.grad)


@pytest.mark.parametrize("by_name", [True, False])
def test_the_input_may_be_given_by_name(by_name):
    layer = nn.Linear(2, 2, bias=False)
    plain = layer(torch.ones(1, 2))
    layer.register_forward_pre_hook(InputScale(3.0), with_kwargs=True)

    ones = torch.ones(1, 2)

    output = layer(input=ones) if by_name else layer(ones)
    torch.testing.assert_close(output, 3 * plain)


def test_residual_net_and_the_default():
    model = ResidualNet([4], 4)

    small = load_submodel(model, half(model, images(1)))

    assert factors(small) == {"blocks.0.conv1": 2.0, "blocks.0.conv2": 2.0, "head": 2.0}
