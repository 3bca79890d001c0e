"""The names that the submodel room passes around, and small questions about tensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.rnn import PackedSequence

from flwr_asyncdrop.exceptions import ConfigError, UnsupportedModelError
from flwr_asyncdrop.readable import type_of

State: TypeAlias = dict[str, Tensor]
"""A ``state_dict``: parameters and buffers by name."""

Shapes: TypeAlias = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""


class Shaped(Protocol):
    """Anything with a shape, as tensors and Flower's arrays are."""

    @property
    def shape(self) -> Any:
        """Its size along each dim."""


Keep: TypeAlias = tuple[Tensor, ...]
"""Per group of a plan the kept unit numbers: int64, ascending, at least one."""

STATISTICS = ("running_mean", "running_var")
"""PyTorch's names of batch normalisation's statistics, which are no weights."""

NORM_BUFFERS = (*STATISTICS, "num_batches_tracked")
"""What changes whenever it sees data in training mode, even if nothing trains it."""

Indices: TypeAlias = dict[str, dict[int, Tensor]]
"""Tensor name -> dim -> kept positions (int64, ascending); narrowed dims only."""

Scope: TypeAlias = Literal["all", "internal", "stream"]
"""Which units may be dropped; see `plan_submodels`."""

UnitKind: TypeAlias = Literal["internal", "residual", "stream", "expert"]
"""Where units live: inside one block, along a residual stream, along one that is
normalised (dropping is then not the same as silencing), or as experts to choose from
(a dropped one cannot be chosen)."""


@dataclass(frozen=True)
class Example:
    """The arguments of one forward pass."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def run(self, model: nn.Module) -> Any:
        """Return what `model` makes of the arguments, all that an iterator yields."""
        made = model(*self.args, **self.kwargs)
        return list(made) if isinstance(made, Iterator) else made


Arguments: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any] | Example
"""The arguments of one forward pass: the only one, positional ones or keyword ones."""

Inputs: TypeAlias = Arguments | Sequence[Arguments]
"""Example inputs: the arguments of one forward pass, or a list of several passes'."""


def examples_of(
    inputs: Inputs, kwargs: Mapping[str, Any] | None = None
) -> list[Example]:
    """Return the passes that example inputs stand for, each with `kwargs` as well."""
    if not isinstance(kwargs, Mapping | None):
        raise ConfigError(
            f"example_kwargs of type {type(kwargs).__name__} must be a dict"
        )
    calls = inputs if isinstance(inputs, list) else [inputs]
    if not calls:
        raise ConfigError("example_inputs=[] has no forward pass: list at least one")
    for call in calls:
        if not isinstance(call, Tensor | tuple | list | Mapping | Example):
            kind = f"{type(call).__module__}.{type(call).__name__}"
            raise ConfigError(
                f"example_inputs of type {kind.removeprefix('builtins.')} are no "
                "arguments of a forward pass: pass a tensor, e.g. torch.zeros(1, 3, "
                "32, 32), a tuple of arguments, or a dict of keyword arguments"
            )
    return [_example(call, kwargs or {}) for call in calls]


def _example(call: Any, kwargs: Mapping[str, Any]) -> Example:
    if isinstance(call, Example):
        return Example(call.args, {**call.kwargs, **kwargs})
    if isinstance(call, Mapping):
        return Example((), {**call, **kwargs})
    # A packed sequence is a tuple to Python, and one argument to any model.
    is_one = isinstance(call, Tensor | PackedSequence)
    args = (call,) if is_one else tuple(call)
    return Example(args, dict(kwargs))


def check_module(model: object) -> None:
    """Raise ConfigError if `model` is something else than a module."""
    if isinstance(model, nn.Module):
        return
    if isinstance(model, type):
        name = model.__name__
        raise ConfigError(f"model={name} is a class: pass a module of it, {name}(...)")
    raise ConfigError(f"model, {type_of(model)}, is no nn.Module: pass one")


def check_initialised(model: nn.Module) -> None:
    """Raise UnsupportedModelError if tensors of lazy modules have no shape yet."""
    if any(map(is_lazy, tensors_of(model).values())):
        raise UnsupportedModelError(
            f"{type(model).__name__} has tensors without a shape yet: run it once on "
            "example inputs, as its lazy layers need"
        )


def tensors_of(model: nn.Module) -> State:
    """Return the module's own parameters and buffers, not copies, by state name."""
    check_module(model)
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


def frozen_of(tensors: Mapping[str, Tensor]) -> frozenset[str]:
    """Return the names of parameters without ``requires_grad``; none if all are so."""
    parameters = parameters_of(tensors)
    frozen = frozenset(name for name in parameters if not tensors[name].requires_grad)
    return frozen if frozen < parameters else frozenset()


def owner_of(name: str) -> str:
    """Return the name of the module that holds the tensor or module `name`."""
    return name.rpartition(".")[0]


def is_inexact(tensor: Tensor) -> bool:
    """Tell whether a tensor has floating-point or complex numbers, not whole ones."""
    return tensor.is_floating_point() or tensor.is_complex()


def resolved(tensor: Tensor) -> Tensor:
    """Return a tensor whose memory has its numbers, not their conjugates or negatives.

    The same one, if it is so already.
    """
    return tensor.resolve_conj().resolve_neg()


def is_ascending(positions: Tensor) -> bool:
    """Tell whether these are positions in order: an int64 vector without repeats."""
    return (
        positions.dtype == torch.int64
        and positions.dim() == 1
        and bool((positions[1:] > positions[:-1]).all())
    )
