"""What the adapters of a model were like before they were narrowed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from flwr_asyncdrop.submodel.types import Shapes

_MEMORY = "_asyncdrop_lora"


@dataclass(frozen=True)
class LoraMemory:
    """What the tensors that travel are like at full rank, and since they were loaded.

    Attributes
    ----------
    shapes : mapping of str to tuple of int
        The full shapes.
    ranks : mapping of str to int
        The full ranks that PEFT's layers were made with.
    loaded : mapping of str to tuple of int
        The shapes that arrived last.
    paused : frozenset of str
        Tensors without elements: they train again once they have some.
    """

    shapes: Shapes
    ranks: Mapping[str, int] = field(default_factory=dict)
    loaded: Shapes = field(default_factory=dict)
    paused: frozenset[str] = frozenset()


def memory_of(model: nn.Module, adapter: str = "") -> LoraMemory | None:
    """Return what a model remembers; None if it was never narrowed.

    `adapter` is the name of PEFT's adapter: each has ranks of its own.
    """
    known: dict[str, Any] = vars(model).get(_MEMORY, {})
    return known.get(adapter)


def remember(model: nn.Module, memory: LoraMemory, adapter: str = "") -> None:
    """Keep it in the model, so that copies of the model have it as well."""
    model.__dict__[_MEMORY] = {**vars(model).get(_MEMORY, {}), adapter: memory}
