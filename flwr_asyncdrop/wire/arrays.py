"""Checking the arrays that a client sent."""

import math
from typing import Any

import numpy as np
import torch
from flwr.app import Array
from numpy.typing import NDArray

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.wire.npy import Layout, numpy_dtype, read_layout, view_array

_HALF_MAX = float(np.finfo(np.float16).max)


def read_sound_array(
    name: str, array: Array, shape: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """Read an array that has the shape and dtype that were sent, and sound values.

    A narrower dtype of the same kind is widened without loss (``float16`` to
    ``float32``, ``int32`` to ``int64``); any other is refused. Values must be finite,
    and so far from the largest number of their dtype that no difference, square or sum
    overflows, which half precision has no room for; a running variance must not be
    negative. Else ReplyError, of kind ``"unreadable"``, ``"shape"``, ``"dtype"``,
    ``"non-finite"`` or ``"variance"``.
    The tensor may lie on the array's own bytes: it is only read.
    """
    wanted = numpy_dtype(dtype)
    try:
        # What it claims to be, before any memory is spent on it.
        _check_layout(name, read_layout(array), shape, wanted)
        values = view_array(array).astype(wanted, copy=False)
    except ValueError as error:
        raise ReplyError(
            "unreadable",
            f"array {name!r} cannot be read: {error}; return the state_dict as an "
            "ArrayRecord",
        ) from error
    check_values(name, values)
    return torch.from_numpy(values)


def _check_layout(
    name: str, found: Layout, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> None:
    if found.shape != shape:
        fix = "train the model that was loaded from the message, not the full one"
        if name.isdecimal():  # of a list, which has no model to be loaded
            fix = "return the arrays in the shapes and the order in which they came"
        raise ReplyError(
            "shape",
            f"array {name!r} came back with shape {shown(found.shape)} instead of "
            f"{shape}: {fix}",
        )
    if found.dtype.kind != dtype.kind or not np.can_cast(found.dtype, dtype):
        raise ReplyError(
            "dtype",
            f"array {name!r} came back as {found.dtype.name} instead of {dtype.name}: "
            "return the model's tensors in the dtypes that were sent",
        )


def check_values(name: str, values: NDArray[Any]) -> None:
    """Raise ReplyError unless values can be merged; see `read_sound_array`."""
    if values.dtype.kind not in "fc" or values.size == 0:
        return
    # As a vector: NumPy views no complex scalar as its two parts.
    numbers = values.reshape(-1).view(values.real.dtype)
    # Squares of it are finite. Half precision would be left with too little: it may
    # use all that it has.
    limit = max(math.sqrt(float(np.finfo(numbers.dtype).max)), _HALF_MAX)
    # A NaN is the least and the largest, and fails both comparisons.
    lowest, highest = map(float, torch.aminmax(torch.from_numpy(numbers)))
    if not (lowest >= -limit and highest <= limit):
        raise ReplyError(
            "non-finite",
            f"array {name!r} holds NaN, infinity or values beyond {limit:.3g}: lower "
            "the learning rate, or clip the gradients",
        )
    # PyTorch's name; the model takes its root.
    if name.rpartition(".")[2] == "running_var" and lowest < 0:
        raise ReplyError(
            "variance",
            f"array {name!r} holds {lowest:.3g}, and a variance cannot be negative: "
            "keep noise off running statistics, or use GroupNorm, which has none",
        )
