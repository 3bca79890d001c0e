"""Tensors as the bytes of Flower's ``Array``, and back, with one copy each way.

The bytes are those of ``numpy.save``, as Flower's own are. ``numpy.save`` and
``numpy.load`` go through streams, copy twice and parse each header anew.
"""

import math
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["read_array", "write_array"]

_STYPE = "numpy.ndarray"
_VERSION = np.lib.format.magic(1, 0)
_LENGTH_END = len(_VERSION) + 2
# Above the number of tensors of a model; each costs a few hundred bytes.
_KNOWN_HEADERS = 4096


class _Layout(NamedTuple):
    """What a header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_plain: bool  # in C order, and numbers rather than objects


def write_array(tensor: Tensor) -> Array:
    """Serialise a tensor; the bytes are those of ``Array(tensor)``."""
    values = tensor.detach().cpu().numpy()
    if not values.flags.c_contiguous:
        return Array(values)
    data = b"".join((_header(values.dtype, values.shape), values.data))
    return Array(str(values.dtype), values.shape, _STYPE, data)


def read_array(array: Array) -> NDArray[Any]:
    """Read an array that owns its memory; the same as ``array.numpy()``.

    Raises
    ------
    Exception
        Nearly anything, where the bytes are not an array's.
    """
    data = array.data
    if array.stype != _STYPE or not data.startswith(_VERSION):
        return array.numpy()
    start = _LENGTH_END + int.from_bytes(data[len(_VERSION) : _LENGTH_END], "little")
    layout = _layout(data[:start])
    size = math.prod(layout.shape) * layout.dtype.itemsize
    if not layout.is_plain or len(data) != start + size:
        return array.numpy()
    values = np.frombuffer(data, layout.dtype, offset=start)
    return values.reshape(layout.shape).copy()


@lru_cache(_KNOWN_HEADERS)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


@lru_cache(_KNOWN_HEADERS)
def _layout(header: bytes) -> _Layout:
    stream = BytesIO(header)
    np.lib.format.read_magic(stream)
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
    return _Layout(dtype, shape, not fortran and not dtype.hasobject)
