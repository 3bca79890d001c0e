"""Narrow the adapters of a model in place, to the ranks that arrived."""

from collections.abc import Iterable
from dataclasses import replace

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel.lora.memory import LoraMemory, remember
from flwr_asyncdrop.submodel.lora.pairs import Adapter, Pairs, find_adapters
from flwr_asyncdrop.submodel.lora.skipping import skip_empty
from flwr_asyncdrop.submodel.lora.tensors import (
    adapter_name,
    check_unmerged,
    current_memory,
    is_peft,
    lora_layers,
    ranks_of,
    travelling,
)
from flwr_asyncdrop.submodel.narrowing.in_place import resize_
from flwr_asyncdrop.submodel.narrowing.patches import patch
from flwr_asyncdrop.submodel.narrowing.wrappers import PREFIXES
from flwr_asyncdrop.submodel.types import Shapes, State, shapes_of, tensors_of

_SAME = "build the same model on the server and on the client"


def load_lora(
    model: nn.Module, state: State, *, pairs: Pairs | None = None
) -> nn.Module:
    """Give the adapters of `model` the ranks that arrived, and their values; return it.

    Parameters are the same objects, on the same devices: an optimizer that was built
    before trains them. The scaling ``alpha / r`` stays that of the full rank, so that
    a model without some components is the full model with these zeroed. PEFT's layers
    do not run an adapter without components; the empty parameters of others do not
    train. The model can be loaded again, with other ranks.

    Parameters
    ----------
    model : Module
        As it was built, at full rank, or as it was loaded before.
    state : dict of str to Tensor
        All tensors of `lora_state`, at full rank or with fewer components.
    pairs : sequence of tuple, optional
        As for `lora_plan`.

    Raises
    ------
    ShapeError
        If the arrays are not those of the model; it has not changed then.
    UnsupportedModelError
        If adapters are merged into the base.
    """
    # What is made in inference mode never trains, and changes nowhere else.
    made_in_it = any(tensor.is_inference() for tensor in tensors_of(model).values())
    with torch.inference_mode(torch.is_inference_mode_enabled() and made_in_it):
        _load(model, state, pairs)
    return model


def _load(model: nn.Module, state: State, pairs: Pairs | None) -> None:
    tensors = travelling(model)
    full = shapes_of(tensors)
    memory = current_memory(model, full) or LoraMemory(full, ranks_of(model))
    sent = {name: array for name, array in state.items() if isinstance(array, Tensor)}
    adapters = find_adapters(memory.shapes, pairs)
    shapes = shapes_of(sent)
    _check_shapes(type(model).__name__, memory.shapes, shapes, adapters)
    check_unmerged(model, adapters)
    if not is_peft(model):  # whose layers are run without what is empty
        memory = _pause_empty(tensors, shapes, memory)
    remember(model, replace(memory, loaded=shapes), adapter_name(model))
    resize_(tensors, shapes)
    with torch.no_grad():
        for each, tensor in tensors.items():
            tensor.copy_(sent[each])
    _refresh_sizes(model, tensors.values())
    skip_empty(lora_layers(model).values())


def _pause_empty(tensors: State, shapes: Shapes, memory: LoraMemory) -> LoraMemory:
    """Let what becomes empty not train, so that nothing runs backward to it.

    What was empty trains again. Return the memory, with what is paused now.
    """
    paused = set(memory.paused)
    for name, tensor in tensors.items():
        if 0 in shapes[name] and 0 not in memory.shapes[name]:
            if tensor.requires_grad:
                tensor.requires_grad_(False)
                paused.add(name)
        elif name in paused:
            tensor.requires_grad_(True)
            paused.discard(name)
    return replace(memory, paused=frozenset(paused))


def _check_shapes(
    model: str, full: Shapes, sent: Shapes, adapters: Iterable[Adapter]
) -> None:
    complaint = f"these arrays are not those of the adapters of {model}"
    for name in sorted(full.keys() ^ sent.keys()):
        found = "the model does not have" if name in sent else "they lack"
        fix = f"{_SAME}, and send lora_state(model)"
        if inner := _inside(full, sent):
            fix = f"load the model inside of it, .{inner}, and send its lora_state"
        raise ShapeError(f"{complaint}: {found} {name}; {fix}")
    allowed = {name: [shape] for name, shape in full.items()}
    for adapter in adapters:
        rank = dict(enumerate(sent[adapter.a])).get(adapter.a_dim, adapter.rank)
        if rank < adapter.rank:
            for name, dim in ((adapter.a, adapter.a_dim), (adapter.b, adapter.b_dim)):
                allowed[name] = [_with(full[name], dim, rank)]
            if adapter.bias and rank == 0:
                allowed[adapter.bias].append((0,))
    for name, shapes in allowed.items():
        if sent[name] not in shapes:
            raise ShapeError(
                f"{complaint}: {name} has shape {sent[name]}, where {shapes[0]} "
                f"belongs; {_SAME}"
            )


def _inside(full: Iterable[str], sent: Iterable[str]) -> str:
    """Return where a wrapper, such as torch.compile's, has the model; "" if none is."""
    for prefix in PREFIXES:
        wraps = all(name.startswith(prefix) for name in full)
        if wraps and not any(name.startswith(prefix) for name in sent):
            return prefix.removesuffix(".")
    return ""


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _refresh_sizes(model: nn.Module, tensors: Iterable[Tensor]) -> None:
    """Have the layers that hold the factors say how wide they are now."""
    mine = {id(tensor) for tensor in tensors}
    for module in model.modules():
        if any(id(parameter) in mine for parameter in module._parameters.values()):
            patch(module, module)
