"""Fast gather and masked merge on the CPU: kept coordinates as runs of bytes.

Once its last narrowed dim is fixed, a contiguous tensor is a grid of *slots*: blocks
of consecutive bytes that are kept or dropped whole, such as the nine weights of one
filter and one input channel. NumPy moves masked elements of an opaque dtype with one
``memmove`` a run of kept neighbours, which is several times faster than indexing.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# Below this a run of slots is too short to pay for its bookkeeping.
_MIN_SLOT_BYTES = 8
# Bounds the temporaries of a merge: they stay in the cache.
_BLOCK_BYTES = 2**18


class Slots(NamedTuple):
    """A view of a tensor's memory, one opaque element a slot, and which are kept."""

    grid: npt.NDArray[np.void]
    kept: npt.NDArray[np.bool_]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor, dims: Mapping[int, Tensor]) -> "Slots | None":
        """Return the slots of `tensor`, or None where indexing serves better."""
        if not dims or tensor.device.type != "cpu" or not tensor.is_contiguous():
            return None
        if tensor.is_conj() or tensor.is_neg():  # its memory has other numbers
            return None
        depth = max(dims) + 1
        slot = math.prod(tensor.shape[depth:]) * tensor.element_size()
        if slot < _MIN_SLOT_BYTES or tensor.numel() == 0:
            return None
        grid = _bytes(tensor).view(f"V{slot}").reshape(tensor.shape[:depth])
        return cls(grid, _kept(grid.shape, dims), tensor.dtype)

    def gather(self) -> Tensor:
        """Return a copy of the kept elements, flat, in the order of memory."""
        return self._elements(self.grid[self.kept])

    def mix_(self, sub: Tensor, weight: float) -> None:
        """Move the kept elements towards those of `sub`, which is contiguous."""
        fresh = _bytes(sub).view(self.grid.dtype)
        if weight == 1:
            self.grid[self.kept] = fresh
            return
        for kept, part in self._change(fresh):
            kept.lerp_(part, weight)

    def add_(self, part: Tensor, scale: float) -> None:
        """Add a multiple of `part`, which is contiguous, to the kept elements."""
        for kept, added in self._change(_bytes(part).view(self.grid.dtype)):
            kept.add_(added, alpha=scale)

    def _change(self, fresh: npt.NDArray[np.void]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the kept elements, to be changed in place, and those of `fresh`."""
        row_bytes = max(self.grid.nbytes // len(self.grid), 1)
        step = max(_BLOCK_BYTES // row_bytes, 1)
        done = 0
        for row in range(0, len(self.grid), step):
            block, kept = self.grid[row : row + step], self.kept[row : row + step]
            changed = block[kept]
            beside = fresh[done : done + len(changed)]
            yield self._elements(changed), self._elements(beside)
            block[kept] = changed
            done += len(changed)

    def _elements(self, slots: npt.NDArray[np.void]) -> Tensor:
        return torch.from_numpy(slots.view(np.uint8)).view(self.dtype)


def _bytes(tensor: Tensor) -> npt.NDArray[Any]:
    # A single number counts as contiguous whatever its stride is.
    flat = tensor.detach().view(-1).as_strided((tensor.numel(),), (1,))
    found: npt.NDArray[Any] = flat.view(torch.uint8).numpy()
    return found


def _kept(shape: tuple[int, ...], dims: Mapping[int, Tensor]) -> npt.NDArray[np.bool_]:
    """Return the mask of `shape` that is True where every narrowed dim is kept."""
    mask = np.ones(shape, dtype=np.bool_)
    for dim, positions in dims.items():
        along = np.zeros(shape[dim], dtype=np.bool_)
        along[positions.numpy()] = True
        mask &= along.reshape(-1, *[1] * (len(shape) - dim - 1))
    return mask
