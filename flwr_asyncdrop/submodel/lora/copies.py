"""A copy of a model with adapters of its own, on the same base."""

from typing import Any

from torch import nn

from flwr_asyncdrop.submodel.lora.tensors import travelling
from flwr_asyncdrop.submodel.narrowing.copies import copy_module


def copy_adapters(model: nn.Module) -> nn.Module:
    """Return a copy that shares all tensors with `model` but those that travel."""
    mine = {id(tensor) for tensor in travelling(model).values()}
    shared: dict[int, Any] = {
        id(tensor): tensor
        for tensor in [*model.parameters(), *model.buffers()]
        if id(tensor) not in mine
    }
    return copy_module(model, shared)
