"""The masked merge in one pass over memory, compiled where numba is installed.

Gathering, mixing and scattering are three passes for NumPy; compiled, each kept
weight is read, mixed and written once. ``pip install "flwr-asyncdrop[fast]"`` brings
numba; without it `Slots` does the same, slower.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

__all__ = ["FusedMerge"]

_Array = npt.NDArray[Any]
_Offsets = npt.NDArray[np.uintp]
_Kernel = Callable[[_Array, _Array, _Offsets, _Offsets, int, int, Any, Any], None]

_SCALARS: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
}


class FusedMerge:
    """Merges the tensors of one submodel, sharing what their indices share.

    Parameters
    ----------
    weight : float
        The share of the submodel in the result, in [0, 1).
    """

    def __init__(self, weight: float) -> None:
        self._weights = {
            dtype: (scalar(weight), scalar(1) - scalar(weight))
            for dtype, scalar in _SCALARS.items()
        }
        # One index tensor serves all the tensors that a group narrows.
        self._rows: dict[int, _Offsets] = {}
        self._runs: dict[int, _Offsets] = {}

    def mix_(self, full: Tensor, sub: Tensor, dims: Mapping[int, Tensor]) -> bool:
        """Move the kept coordinates of `full` towards `sub`, if it can be done.

        Parameters
        ----------
        full : Tensor
            Narrowed along its first two dims at most; float32 or float64, contiguous,
            on the CPU. Changed in place.
        sub : Tensor
            Of the submodel's shape and the same dtype; contiguous.
        dims : mapping of int to Tensor
            Dim -> kept positions (int64, ascending); at least one.

        Returns
        -------
        bool
            False, with nothing touched, where numba is missing or the tensors are
            not such.
        """
        fits = (
            full.dtype in _SCALARS
            and max(dims) <= 1
            and full.is_contiguous()
            and full.device.type == "cpu"
        )
        kernel = _compiled() if fits else None
        if kernel is None:
            return False
        if 1 in dims:
            rows = self._rows_of(dims[0]) if 0 in dims else _count(len(full))
            runs = self._runs_of(dims[1])
            width = math.prod(full.shape[2:])
            pitch = full.shape[1] * width
        else:
            # Whole rows: the tensor is one row, of which stretches are kept.
            rows, runs = _count(1), self._runs_of(dims[0])
            width, pitch = math.prod(full.shape[1:]), 0
        weights = self._weights[full.dtype]
        kernel(_flat(full), _flat(sub), rows, runs, pitch, width, *weights)
        return True

    def _rows_of(self, kept: Tensor) -> _Offsets:
        """Return kept positions as the kernel wants them; shape (kept,)."""
        if id(kept) not in self._rows:
            self._rows[id(kept)] = kept.numpy().astype(np.uintp)
        return self._rows[id(kept)]

    def _runs_of(self, kept: Tensor) -> _Offsets:
        """Return start and length of each run of kept neighbours; shape (runs, 2)."""
        if id(kept) not in self._runs:
            positions = kept.numpy()
            first = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
            lengths = np.diff(first, append=len(positions))
            runs = np.stack([positions[first], lengths], axis=1)
            self._runs[id(kept)] = runs.astype(np.uintp)
        return self._runs[id(kept)]


def _count(size: int) -> _Offsets:
    return np.arange(size, dtype=np.uintp)


def _flat(tensor: Tensor) -> _Array:
    flat: _Array = tensor.detach().numpy().reshape(-1)
    return flat


def _mix(
    full: _Array,
    sub: _Array,
    rows: _Offsets,
    runs: _Offsets,
    pitch: int,
    width: int,
    weight: Any,
    rest: Any,
) -> None:  # pragma: no cover  # runs compiled
    """Mix runs of elements as ``torch.lerp`` does: from whichever end is nearer.

    A row has `pitch` elements, a position in it `width`; `rest` is 1 - `weight`.
    Offsets are unsigned, so that no index can be negative and the innermost loop
    becomes vector instructions.
    """
    near = weight < 0.5
    row_size, size, source = np.uintp(pitch), np.uintp(width), np.uintp(0)
    for r in range(len(rows)):
        row = rows[r] * row_size
        for run in range(len(runs)):
            start, length = row + runs[run, 0] * size, runs[run, 1] * size
            if near:
                for k in range(length):
                    old, new = full[start + k], sub[source + k]
                    full[start + k] = old + weight * (new - old)
            else:
                for k in range(length):
                    old, new = full[start + k], sub[source + k]
                    full[start + k] = new - (new - old) * rest
            source += length


@cache
def _compiled() -> _Kernel | None:
    """Compile the kernel at its first use; None without numba.

    Contraction to fused multiply-add is what ``torch.lerp`` does, too.
    """
    try:
        import numba
    except ImportError:
        return None
    compile_ = numba.njit(cache=True, nogil=True, fastmath={"contract"})
    kernel: _Kernel = compile_(_mix)
    return kernel
