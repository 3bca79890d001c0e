"""The names that the submodel room passes around, and small questions about tensors."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

State: TypeAlias = dict[str, Tensor]
"""A ``state_dict``: parameters and buffers by name."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""

Keep: TypeAlias = tuple[Tensor, ...]
"""Per group of a plan the kept unit numbers: int64, ascending, at least one."""

Indices: TypeAlias = dict[str, dict[int, Tensor]]
"""Tensor name -> dim -> kept positions (int64, ascending); narrowed dims only."""

UnitKind: TypeAlias = Literal["internal", "residual"]
"""Whether units live inside one block or are carried along a residual stream."""

Inputs: TypeAlias = Tensor | tuple[Any, ...]
"""The positional arguments of one forward pass, or the only one."""


def as_tuple(inputs: Inputs) -> tuple[Any, ...]:
    """Return the positional arguments, a single tensor as a tuple of one."""
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)


def tensors_of(model: nn.Module) -> State:
    """Return the module's own parameters and buffers, not copies, by state name."""
    state = model.state_dict(keep_vars=True)
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return the shape of each tensor."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def parameters_of(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the names of those that are parameters; the others are buffers."""
    return frozenset(
        name for name, tensor in tensors.items() if isinstance(tensor, nn.Parameter)
    )


def owner_of(name: str) -> str:
    """Return the name of the module that holds the tensor or module `name`."""
    return name.rpartition(".")[0]


def is_ascending(positions: Tensor) -> bool:
    """Tell whether these are positions in order: an int64 vector without repeats."""
    return (
        positions.dtype == torch.int64
        and positions.dim() == 1
        and bool((positions[1:] > positions[:-1]).all())
    )
