"""The naive reference of a submodel: the full model, dropped units masked by zeros."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel import Indices, Keep, Plan


def random_keep(plan: Plan, seed: int, rate: float | None = None) -> Keep:
    """Keep a random part of each group: `rate` is dropped, or any number of units."""
    generator = torch.Generator().manual_seed(seed)
    keep = []
    for group in plan.groups:
        count = group.size - int(group.size * (rate or 0))
        if rate is None:
            count = int(torch.randint(1, group.size + 1, (), generator=generator))
        order = torch.randperm(group.size, generator=generator)
        keep.append(order[:count].sort().values)
    return tuple(keep)


def masks(shapes: Mapping[str, tuple[int, ...]], indices: Indices) -> dict[str, Tensor]:
    """Return per tensor 1 where it is kept and 0 where it is dropped."""
    result = {}
    for name, shape in shapes.items():
        mask = torch.ones(shape, dtype=torch.float64)
        for dim, kept in indices.get(name, {}).items():
            flags = torch.zeros(shape[dim], dtype=torch.float64)
            flags[kept] = 1
            mask *= flags.view([-1 if k == dim else 1 for k in range(len(shape))])
        result[name] = mask
    return result


def silenced(model: nn.Module, plan: Plan, indices: Indices) -> dict[str, Tensor]:
    """Return the model's tensors with dropped positions at 0; gradients pass."""
    kept = masks(plan.shapes, indices)
    return {
        name: tensor * kept[name] if tensor.is_floating_point() else tensor.clone()
        for name, tensor in model.state_dict(keep_vars=True).items()
    }


def run(model: nn.Module, state: dict[str, Tensor], inputs: Tensor) -> Tensor:
    """Run `model` with other tensors; tied names are given one by one."""
    return torch.func.functional_call(model, state, inputs, tie_weights=False)
