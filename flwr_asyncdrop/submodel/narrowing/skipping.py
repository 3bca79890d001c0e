"""Blocks that a submodel goes without: their tensors are empty, their input passes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from flwr_asyncdrop.submodel.types import owner_of, tensors_of

# What is iterated over instead of called cannot pass anything on.
_UNCALLED = (nn.ModuleList, nn.ModuleDict)


def emptied_blocks(
    model: nn.Module, shapes: Mapping[str, Sequence[int]]
) -> tuple[str, ...]:
    """Return the modules of which every tensor with dims has lost all its rows.

    Of nested ones the outermost.
    """
    emptied: set[str] = set()
    alive = {""}
    for name, tensor in tensors_of(model).items():
        if tensor.dim():
            found = tuple(shapes.get(name, ()))
            lost = len(tensor) > 0 and found == (0, *tensor.shape[1:])
            (emptied if lost else alive).update(_owners(name))
    skipped: list[str] = []
    for name in sorted(emptied - alive, key=len):
        called = not isinstance(model.get_submodule(name), _UNCALLED)
        if called and not any(is_inside(name, outer) for outer in skipped):
            skipped.append(name)
    return tuple(skipped)


def is_inside(name: str, module: str) -> bool:
    """Tell whether a tensor or module belongs to a module, by their names."""
    return name.startswith(f"{module}.")


def skip(block: nn.Module) -> None:
    """Make `block` return its first argument.

    It keeps its class and attributes: ``nn.TransformerEncoder`` reads its first layer.
    """
    block.forward = _pass_on


def _pass_on(first: Any, *_: Any, **__: Any) -> Any:
    return first


def _owners(name: str) -> Iterator[str]:
    while name:
        name = owner_of(name)
        yield name
