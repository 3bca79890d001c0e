"""1/keep scaling of what flows into narrowed layers."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import (
    extract,
    load_in_place,
    load_submodel,
    plan_submodels,
)
from flwr_asyncdrop.submodel.narrowing.scaling import InputScale
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


def pruned():
    """Weights are products with masks, computed before each pass."""
    layers = nn.Sequential(
        *(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)),
    )
    for number in (0, 2, 6):
        prune.l1_unstructured(layers[number], "weight", 0.3)
    prune.l1_unstructured(layers[6], "weight", 0.3)
    prune.l1_unstructured(layers[0], "bias", 0.3)
    return layers


@pytest.mark.parametrize("load", [load_in_place, load_submodel])
def test_pruned_layers(load):
    model = seeded(pruned)
    expected = model[6](2 * model[:6](images()) * (torch.arange(8) < 4))
    state = half(model, images())
    assert state["2.weight_orig"].shape == (4, 1, 3, 3)

    small = load(seeded(pruned), state, scale=True)

    assert (small[2].groups, small[6].in_features) == (4, 4)
    torch.testing.assert_close(small(images()), expected)
    full = load(small, model.state_dict()) if load is load_in_place else model
    torch.testing.assert_close(full(images()), model(images()))


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


class Timed(nn.Linear):
    """A layer whose input is not its first argument."""

    def forward(self, time, x):
        return nn.functional.linear(x, self.weight, self.bias) * torch.cos(time)


class Named(nn.Linear):
    """A layer whose input has another name."""

    def forward(self, hidden):
        return nn.functional.linear(hidden, self.weight, self.bias)


class WithTime(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), Timed(8, 3)

    def forward(self, time, x):
        return self.last(time, self.first(x).relu())


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), Named(8, 3)

    def forward(self, x):
        return self.last(hidden=self.first(x).relu())


def test_the_input_of_a_layer_of_ones_own_is_the_argument_that_is_as_wide():
    model, time, x = WithTime().double(), torch.rand(2, 1).double(), vectors()
    state = half(model, (time, x))

    small = load_submodel(model, state)
    found = small(time, x)
    plain = load_submodel(model, state, scale=False)
    plain.last.weight.data.mul_(2)
    torch.testing.assert_close(found, plain(time, x))

    model = ByName().double()
    state = half(model, x)
    plain = load_submodel(model, state, scale=False)
    plain.last.weight.data.mul_(2)
    torch.testing.assert_close(load_submodel(model, state)(x), plain(x))


def test_no_submodels_where_any_of_two_arguments_may_be_the_input():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(5, 8), Gated(8, 3)

        def forward(self, x):
            hidden = self.first(x).relu()
            return self.last(hidden, hidden.tanh())

    class Gated(nn.Linear):
        def forward(self, gate, x):
            return nn.functional.linear(gate.sigmoid() * x, self.weight, self.bias)

    model = Both().double()
    with pytest.raises(UnsupportedModelError, match="2 arguments of Gated"):
        plan_submodels(model, vectors())


class TestCompiled:
    """`torch.compile` has one cache for all modules of a class, and sees no hooks."""

    @pytest.fixture(autouse=True)
    def _nothing_compiled(self):
        torch.compiler.reset()

    @pytest.mark.parametrize("scales", [(False, True, False), (True, False, True)])
    @pytest.mark.parametrize("load", [load_submodel, load_in_place])
    def test_a_model_of_each_task_has_the_scale_of_that_task(self, load, scales):
        state = half(seeded(deep), vectors())
        for scale in scales:
            small = load(seeded(deep), state, scale=scale)
            compiled = torch.compile(small, backend="eager")
            torch.testing.assert_close(compiled(vectors()), small(vectors()))

    def test_what_the_compiler_of_an_older_torch_looks_at_tells_them_apart(self):
        # PyTorch 2.6 compares the number of a layer's parameters, and not their type.
        model = seeded(deep)
        full = model.state_dict()

        small = load_in_place(model, half(model, vectors()), scale=True)
        assert len(small[2]._parameters) == 3
        assert [*small.state_dict()] == [*full]
        assert all(type(each) is nn.Parameter for each in small.parameters())

        back = load_in_place(small, full)
        assert len(back[2]._parameters) == 2

    @torch.no_grad()  # else the compiler warns
    def test_layers_of_equal_shapes_have_factors_of_their_own(self):
        model = seeded(deep)
        state = model.state_dict()
        narrow = {"2.weight": (4, 4), "2.bias": (4,), "4.weight": (4, 4)}
        narrow |= {"4.bias": (4,), "6.weight": (4, 4)}
        for name, shape in narrow.items():
            state[name] = state[name][tuple(map(slice, shape))]
        small = load_submodel(model, state)
        assert factors(small) == {"4": 2.0, "6": 3.0}
        expected = small(vectors())

        for layer in small:
            layer.compile(backend="eager")

        torch.testing.assert_close(small(vectors()), expected)


def deep():
    return nn.Sequential(
        nn.Linear(5, 4),
        nn.ReLU(),
        nn.Linear(4, 8),
        nn.ReLU(),
        nn.Linear(8, 12),
        nn.ReLU(),
        nn.Linear(12, 4),
    )
