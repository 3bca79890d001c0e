"""What the adapters of a model were like before they were narrowed."""

from dataclasses import dataclass
from typing import Any

from torch import nn

from flwr_asyncdrop.submodel.types import Shapes

_MEMORY = "_asyncdrop_lora"


@dataclass(frozen=True)
class LoraMemory:
    """The full shapes of the tensors that travel, and which of them are paused.

    Those are empty: they train again once they have elements.
    """

    shapes: Shapes
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
