"""Let a model that is tried have other tensors for a while, or fewer units."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.types import Indices, State, is_inexact, tensors_of


@contextmanager
def holding(model: nn.Module, state: State) -> Iterator[None]:
    """Let the model's tensors be those of `state`, which has no copy of them."""
    tensors = tensors_of(model)
    before = {name: tensor.data for name, tensor in tensors.items()}
    try:
        for name, tensor in tensors.items():
            tensor.data = state[name]
        yield
    finally:
        for name, tensor in tensors.items():
            tensor.data = before[name]


@contextmanager
def silencing(model: nn.Module, sources: Indices, value: float) -> Iterator[None]:
    """Fill, in place, the positions that `sources` leaves out with zero, or almost."""
    tensors = tensors_of(model)
    saved: list[tuple[Tensor, int, Tensor, Tensor]] = []
    done: set[int] = set()  # tied tensors have several names
    try:
        for name, dims in sources.items():
            tensor = tensors[name]
            if tensor.data_ptr() in done:
                continue
            done.add(tensor.data_ptr())
            memory = tensor.data
            for dim, positions in dims.items():
                dropped = torch.ones(tensor.shape[dim], dtype=torch.bool)
                dropped[positions] = False
                places = dropped.nonzero().squeeze(1)
                saved.append((tensor, dim, places, memory.index_select(dim, places)))
                memory.index_fill_(dim, places, value if is_inexact(tensor) else 0)
            del memory  # it may be converted
        yield
    finally:
        for tensor, dim, places, values in reversed(saved):
            tensor.data.index_copy_(dim, places, values)


def taken(state: State, sources: Indices) -> State:
    """Return copies of tensors of `state`, each position from the one that is named."""
    return {name: cut(state[name], dims) for name, dims in sources.items()}


def cut(tensor: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    """Return a copy of what a tensor has at these positions; itself without any."""
    for dim, positions in dims.items():
        tensor = tensor.index_select(dim, positions)
    return tensor
