"""What a model with adapters was like before it was narrowed."""

from dataclasses import dataclass

from torch import nn

from flwr_asyncdrop.submodel.types import Shapes

_MEMORY = "_asyncdrop_lora"


@dataclass(frozen=True)
class LoraMemory:
    """The full shapes of the tensors that travel, and which of them are trained."""

    shapes: Shapes
    trained: frozenset[str]


def memory_of(model: nn.Module) -> LoraMemory | None:
    """Return what a model remembers; None if it was never narrowed."""
    found: LoraMemory | None = vars(model).get(_MEMORY)
    return found


def remember(model: nn.Module, memory: LoraMemory) -> None:
    """Keep it in the model, so that copies of the model have it as well."""
    model.__dict__[_MEMORY] = memory
