"""The coordinates that two submodels both have, and inner products over them."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.changes import as_real
from flwr_asyncdrop.submodel import part_of

# Coordinates that are made float64 at once: few enough to stay in a core's cache.
_BLOCK = 1 << 16

_Dims = dict[int, Tensor]


class Overlap(NamedTuple):
    """Where the coordinates of a tensor that two parts have are, by narrowed dim."""

    first: _Dims
    """In the first part."""
    second: _Dims
    """In the second part."""
    full: _Dims
    """In the full tensor."""


class Overlaps:
    """Finds overlaps; index tensors that many tensors share are compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[Tensor, Tensor, Tensor]] = {}

    def of(self, first: Mapping[int, Tensor], second: Mapping[int, Tensor]) -> Overlap:
        """Return where two parts overlap, from the positions that each has kept."""
        found = Overlap({}, {}, {})
        for dim in first.keys() | second.keys():
            if dim not in first:
                found.first[dim] = found.full[dim] = second[dim]
            elif dim not in second:
                found.second[dim] = found.full[dim] = first[dim]
            else:
                both = self._both(first[dim], second[dim])
                found.full[dim], found.first[dim], found.second[dim] = both
        return found

    def _both(self, one: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key = id(one), id(other)
        if key not in self._known:
            positions = one.numpy(force=True), other.numpy(force=True)
            both = np.intersect1d(*positions, assume_unique=True, return_indices=True)
            common, here, there = map(torch.from_numpy, both)
            self._known[key] = common, here, there
        return self._known[key]


def part_at(tensor: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    """Return what a tensor has at some positions: itself if no dim is narrowed."""
    return part_of(tensor, dims) if dims else tensor


def inner_product(one: Tensor, other: Tensor) -> float:
    """Return the inner product of the real parts of two tensors, in float64."""
    pairs = zip(_blocks(one), _blocks(other), strict=True)
    return float(sum(mine.double().dot(theirs.double()) for mine, theirs in pairs))


def squared_length(tensor: Tensor) -> float:
    """Return the inner product of a tensor with itself."""
    wide = (block.double() for block in _blocks(tensor))
    return float(sum(block.dot(block) for block in wide))


def _blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    return torch.split(as_real(tensor).flatten(), _BLOCK)
