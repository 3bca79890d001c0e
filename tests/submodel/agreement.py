"""The oracle of a plan: the full model with units silenced, in both modes.

It shares no code with the planner: what is dropped is multiplied away.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel import (
    Indices,
    Plan,
    extract,
    load_submodel,
    plan_submodels,
)
from tests.submodel.silencing import masks, random_keep

# A unit whose length is normalised must not have the length 0.
ALMOST_ZERO = 1e-100


def planned(
    build: Callable[[], nn.Module], inputs: tuple[object, ...], *, seeds: int = 2
) -> Plan:
    """Plan; hold submodels against the full model, outputs and gradients."""
    model = build_in_double_precision(build)
    plan = plan_submodels(model, inputs)
    for seed in range(seeds):
        indices = plan.indices(random_keep(plan, seed, rate=0.5 if seed == 0 else None))
        for training in (False, True):
            model.train(training)
            assert_same(model, plan, indices, inputs)
    return plan


def build_in_double_precision(build: Callable[[], nn.Module]) -> nn.Module:
    """Build a module whose weights are random: no norm has weights of 1."""
    torch.manual_seed(0)
    model = build().double()
    for tensor in model.state_dict(keep_vars=True).values():
        if tensor.is_complex():
            tensor.data = tensor.data.to(torch.complex128)
        elif tensor.is_floating_point() and _is_constant(tensor):
            tensor.data.uniform_(0.5, 1.5)
    return model


def _is_constant(tensor: Tensor) -> bool:
    return tensor.layout is torch.strided and len(tensor.unique()) == 1


def assert_same(
    model: nn.Module, plan: Plan, indices: Indices, inputs: tuple[object, ...]
) -> None:
    """Assert that a submodel gives what the full model gives with units silenced."""
    small = load_submodel(model, extract(model.state_dict(), indices), scale=False)
    state = silenced(model, plan, indices)
    found = small(*inputs)
    expected = torch.func.functional_call(model, state, inputs, tie_weights=False)
    torch.testing.assert_close(found, expected)

    model.zero_grad()
    found.square().sum().backward()
    expected.square().sum().backward()
    gradients = {
        name: tensor.grad
        for name, tensor in model.named_parameters()
        if tensor.grad is not None
    }
    kept = {name: dims for name, dims in indices.items() if name in gradients}
    for name, gradient in extract(gradients, kept).items():
        torch.testing.assert_close(small.get_parameter(name).grad, gradient, msg=name)


def silenced(model: nn.Module, plan: Plan, indices: Indices) -> dict[str, Tensor]:
    """Return the model's tensors, dropped positions at zero; gradients pass."""
    kept = masks(plan.shapes, indices)
    almost = ALMOST_ZERO if _normalises_lengths(model) else 0.0
    return {
        name: tensor * kept[name] + almost * (1 - kept[name])
        if tensor.is_floating_point() or tensor.is_complex()
        else tensor.clone()
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


def _normalises_lengths(model: nn.Module) -> bool:
    return any(name.endswith(("_g", "original0")) for name in model.state_dict())


def share(plan: Plan) -> float:
    """Return the share of elements that lie at a droppable unit."""
    whole = total = 0.0
    for name, shape in plan.shapes.items():
        size = math.prod(shape)
        for units in plan.axes.get(name, {}).values():
            size *= float((units < 0).double().mean())
        whole, total = whole + size, total + math.prod(shape)
    return 1 - whole / total
