"""Hooks and other functions that name the model name its copy, once it is copied."""

import functools
import types
import weakref
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import (
    extract,
    load_in_place,
    load_submodel,
    plan_submodels,
    silenced,
)
from flwr_asyncdrop.submodel.narrowing.copies import copy_module
from tests.submodel.networks import seeded, vectors
from tests.submodel.silencing import random_keep


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 12), nn.Linear(12, 8), nn.Linear(8, 3)
        self.gain = nn.Parameter(torch.rand(12) + 0.5)

    def first(self, x):
        return self.a(x)

    def forward(self, x):
        return self.c(F.relu(self.b(F.relu(self.first(x)))))


class HookOfGain(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(lambda module, args, out: out * self.gain)


class HookByDefault(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(lambda m, args, out, net=self: out * net.gain)


class HookByKeyword(Net):
    def __init__(self):
        super().__init__()

        def scale(module, args, out, *, gain=self.gain):
            return out * gain

        self.a.register_forward_hook(scale)


class HookInPartial(Net):
    def __init__(self):
        super().__init__()
        hook = functools.partial(lambda gain, m, args, out: out * gain(), self._gain)
        self.a.register_forward_hook(hook)

    def _gain(self):
        return self.gain


class HookThroughAnother(Net):
    def __init__(self):
        super().__init__()

        def gain():
            return self.gain

        self.a.register_forward_hook(lambda module, args, out: out * gain())


class HookOfObject(Net):
    def __init__(self):
        super().__init__()
        self.a.register_forward_hook(_Scaler(self).hook)


class _Scaler:
    def __init__(self, net):
        self.net = lambda: net

    def hook(self, module, args, out):
        return out * self.net().gain


class LambdaInAttribute(Net):
    def __init__(self):
        super().__init__()
        self.first = lambda x: self.a(x) * self.gain


class LambdasInList(Net):
    def __init__(self):
        super().__init__()
        self.steps = [lambda x: self.a(x), (lambda x: x * self.gain,)]

    def first(self, x):
        return self.steps[1][0](self.steps[0](x))


class Steps(NamedTuple):
    layer: Callable
    scale: set[Callable]


class LambdasInNamedTuple(Net):
    def __init__(self):
        super().__init__()
        scales = frozenset([lambda x: x * self.gain])
        self.steps = Steps(lambda x: self.a(x), {lambda x: next(iter(scales))(x)})

    def first(self, x):
        return next(iter(self.steps.scale))(self.steps.layer(x))


class LambdaInModule(Net):
    def __init__(self):
        super().__init__()
        self.scale = _Lambda(lambda x: x * self.gain)

    def first(self, x):
        return self.scale(self.a(x))


class _Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class ForwardReplaced(Net):
    def __init__(self):
        super().__init__()
        old = self.forward
        self.forward = lambda x: 2 * old(x)


class ForwardOfLayerReplaced(Net):
    def __init__(self):
        super().__init__()

        def forward(module, x):
            return F.linear(x, module.weight, module.bias) * self.gain

        self.a.forward = types.MethodType(forward, self.a)


class ForwardCallsItself(Net):
    def __init__(self):
        super().__init__()

        def first(x, again=1):
            return first(x, again - 1) * self.gain if again else self.a(x)

        self.first = first


class PreHookOfWeights(Net):
    def __init__(self):
        super().__init__()
        layer = self.a
        self.b.register_forward_pre_hook(
            lambda module, args: (args[0] * layer.weight.norm(dim=1),)
        )


NETS = (
    HookOfGain,
    HookByDefault,
    HookByKeyword,
    HookInPartial,
    HookThroughAnother,
    HookOfObject,
    LambdaInAttribute,
    LambdasInList,
    LambdasInNamedTuple,
    LambdaInModule,
    ForwardReplaced,
    ForwardOfLayerReplaced,
    ForwardCallsItself,
    PreHookOfWeights,
)


def gradients(model):
    model(vectors()).square().sum().backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@functools.cache
def plan_of(kind):
    return plan_submodels(seeded(kind), vectors())


@pytest.fixture(params=NETS)
def narrowed(request):
    """A model, its kept positions, and the submodel's state."""
    model, plan = seeded(request.param), plan_of(request.param)
    assert [group.name for group in plan.groups] == ["a", "b"], plan.left_out
    indices = plan.indices(random_keep(plan, 1, 0.5))
    return model, indices, extract(model.state_dict(), indices)


@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_a_submodel_trains_as_the_full_model_with_units_silenced(narrowed, load):
    model, indices, state = narrowed
    whole = seeded(type(model))
    whole.load_state_dict(silenced(model.state_dict(), indices))
    full = gradients(whole)
    expected = extract(full, {n: dims for n, dims in indices.items() if n in full})
    found = gradients(load(model, state, scale=False))
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name])


def test_the_model_that_was_copied_has_no_part_in_it(narrowed):
    model, _, state = narrowed
    small = load_submodel(model, state)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(torch.nan)
    assert all(grad.isfinite().all() for grad in gradients(small).values())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_copies_of_copies(narrowed):
    model, _, state = narrowed
    full = load_submodel(model, model.state_dict())
    first, again = load_submodel(model, state), load_submodel(full, state)
    assert torch.equal(first(vectors()), again(vectors()))


def test_a_function_that_two_places_share_stays_shared():
    model = seeded(Net)
    model.one = model.two = lambda x: model.a(x)
    copied = load_submodel(model, model.state_dict())
    assert copied.one is copied.two is not model.one


def test_other_functions_and_what_they_name_stay_shared():
    seen = []
    model = seeded(Net)
    model.a.register_forward_hook(lambda module, args, out: seen.append(out))
    model.note = seen.append
    copied = load_submodel(model, model.state_dict())
    (hook,), (same,) = (m.a._forward_hooks.values() for m in (model, copied))
    assert hook is same
    copied(vectors())
    assert len(seen) == 1


def test_a_hook_that_reads_a_width_is_seen_to_depend_on_it():
    model = seeded(Net)
    model.a.register_forward_hook(lambda m, args, out: out / len(model.a.weight))
    plan = plan_submodels(model, vectors())
    assert [group.name for group in plan.groups] == ["b"]


def test_a_gradient_hook_that_reads_a_width_is_seen_to_depend_on_it():
    model = seeded(Net)
    model.a.weight.register_hook(lambda grad: grad * len(model.a.weight))
    plan = plan_submodels(model, vectors())
    assert [group.name for group in plan.groups] == ["b"]


def test_planning_leaves_nothing_in_a_model_that_keeps_what_it_saw():
    model = seeded(Net)
    model.seen = {}
    model.a.register_forward_hook(lambda m, i, out: model.seen.update(a=out))
    plan = plan_submodels(model, vectors())
    assert [group.name for group in plan.groups] == ["a", "b"]
    assert model.seen == {}


def test_a_model_that_keeps_what_it_saw_is_copied():
    model = seeded(Net)
    model.seen = {}
    model.a.register_forward_hook(lambda m, i, out: model.seen.update(a=out))
    model(vectors())
    copied = load_submodel(model, model.state_dict())
    assert torch.equal(copied.seen["a"], model.seen["a"])


class ByWeakReference(Net):
    def __init__(self):
        super().__init__()
        self.other = weakref.ref(self)

    def first(self, x):
        return self.other().a(x)


class ByGlobal(Net):
    def first(self, x):
        return MODELS[0].a(x)


MODELS = []


@pytest.mark.parametrize("kind", [ByWeakReference, ByGlobal])
def test_what_names_no_copy_stays_whole_and_the_plan_says_why(kind):
    model = seeded(kind)
    MODELS[:] = [model]
    plan = plan_submodels(model, vectors())
    assert [group.name for group in plan.groups] == ["b"]
    assert "a name outside of the model" in plan.left_out["a"]


class AttributesOfAParameter(Net):
    """Keeps on a parameter what its forward pass and an optimizer's groups go by."""

    def __init__(self):
        super().__init__()
        self.a.weight.decays = False
        self.a.weight.counts = torch.zeros(3)
        self.a.weight.gain_of = lambda: self.gain

    def first(self, x):
        self.a.weight.counts += 1
        return self.a(x) * self.a.weight.gain_of()


@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_the_attributes_of_a_parameter(load):
    model = seeded(AttributesOfAParameter)
    plan = plan_submodels(model, vectors())
    assert [group.name for group in plan.groups] == ["a", "b"]
    assert model.a.weight.counts.tolist() == [0, 0, 0]  # nobody else's
    indices = plan.indices(random_keep(plan, 0))
    small = load(model, extract(model.state_dict(), indices))
    assert small.a.weight.decays is False
    assert small.a.weight.gain_of() is small.gain
    assert small(vectors()).shape == (2, 3)


class AttributesOfABuffer(Net):
    """Keeps on a buffer what its forward pass goes by."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(3))

    def mark(self):
        """Set them; that is after `double`, which replaces buffers."""
        self.shift.factor = 2.0
        self.shift.counts = torch.zeros(3)
        self.shift.gain_of = lambda: self.gain
        return self

    def first(self, x):
        self.shift.counts += 1
        return self.a(x + self.shift.factor * self.shift[0]) * self.shift.gain_of()


@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_the_attributes_of_a_buffer(load):
    """The pass that looks for units failed, as its copy of the buffer had none."""
    model = seeded(AttributesOfABuffer).mark()
    plan = plan_submodels(model, vectors())
    assert [group.name for group in plan.groups] == ["a", "b"]
    assert model.shift.counts.tolist() == [0, 0, 0]  # nobody else's
    indices = plan.indices(random_keep(plan, 0))
    small = load(model, extract(model.state_dict(), indices))
    assert small.shift.factor == 2
    assert small.shift.gain_of() is small.gain
    assert small(vectors()).shape == (2, 3)


def test_the_attributes_of_a_tensor_that_is_no_buffer():
    """Python copies them, and the functions among them as they are."""
    model = seeded(Net)
    model.shift = torch.ones(3)
    model.shift.gain_of = lambda: model.gain
    copied = copy_module(model, {})
    assert copied.shift.gain_of() is copied.gain


class MadeAnew(nn.Linear):
    """Is copied by its constructor, so that a copy has tensors that nobody gave it."""

    def __deepcopy__(self, memo):
        made = type(self)(self.in_features, self.out_features)
        made.load_state_dict(self.state_dict())
        return made


@pytest.mark.parametrize("load", [load_submodel, load_in_place])
def test_what_a_copy_makes_anew_is_refused_and_not_loaded_without_its_scale(load):
    plain = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    plan = plan_submodels(plain, vectors(4))
    sub = extract(plain.state_dict(), plan.indices(random_keep(plan, 0, rate=0.5)))
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), MadeAnew(8, 3))

    with pytest.raises(UnsupportedModelError, match=r"makes 2.weight anew"):
        plan_submodels(model, vectors(4))
    with pytest.raises(UnsupportedModelError, match=r"makes 2.weight anew"):
        load(model, sub)
    assert model[0].weight.shape == (8, 4)
