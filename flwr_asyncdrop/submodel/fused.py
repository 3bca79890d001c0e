"""The masked merge in one pass over memory, compiled where numba is installed.

Gathering, mixing and scattering are three passes for NumPy; compiled, each kept
weight is read, mixed and written once. ``pip install "flwr-asyncdrop[fast]"`` brings
numba; without it `Slots` does the same, slower.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_Array = npt.NDArray[Any]
_Offsets = npt.NDArray[np.uint64]

_SCALARS: dict[torch.dtype, Any] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
}

_ONE_ROW = np.zeros(1, dtype=np.uint64)


class FusedMerge:
    """Merges the tensors of one submodel, sharing what their indices share.

    Parameters
    ----------
    weight : float
        The share of the submodel in the result, in [0, 1).
    kernels : _Kernels
        What `compiled` returned.
    """

    def __init__(self, weight: float, kernels: "_Kernels") -> None:
        self._kernels = kernels
        self._weights = {
            dtype: (scalar(weight), scalar(1) - scalar(weight))
            for dtype, scalar in _SCALARS.items()
        }
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
            False, with nothing touched, if the tensors are not such.
        """
        fits = (
            full.dtype in _SCALARS
            and max(dims) <= 1
            and full.is_contiguous()
            and full.device.type == "cpu"
        )
        if not fits:
            return False
        if 1 in dims:
            rows = _offsets(dims[0]) if 0 in dims else _count(len(full))
            runs = self._runs_of(dims[1])
            width = math.prod(full.shape[2:])
            pitch = full.shape[1] * width
        else:
            # Whole rows: the tensor is one row, of which stretches are kept.
            rows, runs = _ONE_ROW, self._runs_of(dims[0])
            width, pitch = math.prod(full.shape[1:]), 0
        weights = self._weights[full.dtype]
        self._kernels.mix(_flat(full), _flat(sub), rows, runs, pitch, width, *weights)
        return True

    def _runs_of(self, kept: Tensor) -> _Offsets:
        """Return start and length of each run of kept neighbours; shape (runs, 2)."""
        # One index tensor serves all the tensors that a group narrows.
        if id(kept) not in self._runs:
            self._runs[id(kept)] = self._kernels.find_runs(_offsets(kept))
        return self._runs[id(kept)]


def _offsets(kept: Tensor) -> _Offsets:
    """View positions, none of which is negative, as the kernels want them."""
    offsets: _Offsets = kept.numpy().view(np.uint64)
    return offsets


def _count(size: int) -> _Offsets:
    return np.arange(size, dtype=np.uint64)


def _flat(tensor: Tensor) -> _Array:
    flat: _Array = tensor.detach().numpy().reshape(-1)
    return flat


def _find_runs(positions: _Offsets) -> _Offsets:  # pragma: no cover  # runs compiled
    """Return start and length of each run of neighbours; shape (runs, 2)."""
    runs = np.empty((len(positions), 2), dtype=np.uint64)
    count = 0
    for place in range(len(positions)):
        if place == 0 or positions[place] != positions[place - 1] + np.uint64(1):
            runs[count, 0], runs[count, 1] = positions[place], 0
            count += 1
        runs[count - 1, 1] += np.uint64(1)
    return runs[:count]


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
    row_size, size, source = np.uint64(pitch), np.uint64(width), np.uint64(0)
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


class _Kernels(NamedTuple):
    """The compiled functions."""

    find_runs: Callable[[_Offsets], _Offsets]
    mix: Callable[[_Array, _Array, _Offsets, _Offsets, int, int, Any, Any], None]


@cache
def compiled() -> _Kernels | None:
    """Compile the kernels at their first use; None without numba.

    Contraction to fused multiply-add is what ``torch.lerp`` does, too.
    """
    try:
        import numba
    except ImportError:
        return None
    compile_ = numba.njit(cache=True, nogil=True, fastmath={"contract"})
    return _Kernels(compile_(_find_runs), compile_(_mix))
