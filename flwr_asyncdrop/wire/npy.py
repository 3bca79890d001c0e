"""Tensors as the bytes of Flower's ``Array``, and back, with one copy each way.

The bytes are those of ``numpy.save``, as Flower's own are. The reader is stricter than
``numpy.load``: a header is matched, never evaluated, and nothing but numbers passes,
so that bytes from strangers can neither bring a pickle nor make the server allocate
more than they carry.
"""

import math
import re
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray
from torch import Tensor

_STYPE = "numpy.ndarray"
_MAGIC = b"\x93NUMPY"
# Bytes of the header's own length, by version.
_LENGTH_BYTES = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}
# An array of numbers has 128 bytes or little more. The bound keeps small what is
# remembered of headers that strangers made up.
_LONGEST_HEADER = 1024
# Above the number of tensors of a model; each costs a few hundred bytes.
_KNOWN_HEADERS = 4096
# What PyTorch has too: no objects, texts, dates, or extended precision.
_NUMBERS = frozenset(np.dtype(code).str[1:] for code in "?bBhHiIqQefdFD")
_HEADER = re.compile(
    rb"\{ ?'descr': ?'([<>=|]?)([a-z]\d{1,2})', ?"
    rb"'fortran_order': ?(True|False), ?"
    rb"'shape': ?\(((?:\d{1,18}, ?)*(?:\d{1,18})?)\),? ?\}\s*"
)


class Layout(NamedTuple):
    """What the header of an array says.

    Attributes
    ----------
    dtype : numpy.dtype
        In the byte order of the bytes.
    shape : tuple of int
        Not yet compared with the number of bytes.
    fortran : bool
        Whether the first index varies fastest.
    start : int
        Where the numbers begin, in bytes.
    """

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran: bool
    start: int


def write_array(tensor: Tensor) -> Array:
    """Serialise a tensor; the bytes are those of ``Array(tensor)``."""
    values = tensor.detach().cpu().numpy()
    if not values.flags.c_contiguous:
        return Array(values)
    data = b"".join((_header(values.dtype, values.shape), values.data))
    return Array(str(values.dtype), values.shape, _STYPE, data)


def read_layout(array: Array) -> Layout:
    """Read what an array is said to be, without reading its numbers.

    Raises
    ------
    ValueError
        If the bytes are not those of an array of numbers.
    """
    if array.stype != _STYPE:
        raise ValueError(f"it is serialised as {array.stype!r}, not {_STYPE!r}")
    data = array.data
    magic_end = len(_MAGIC) + 2
    num_bytes = _LENGTH_BYTES.get(data[len(_MAGIC) : magic_end])
    if not data.startswith(_MAGIC) or num_bytes is None:
        raise ValueError("it does not begin as numpy.save would begin it")
    length_end = magic_end + num_bytes
    length = int.from_bytes(data[magic_end:length_end], "little")
    if length > _LONGEST_HEADER:
        raise ValueError(f"its header of {length} bytes is too long for numbers")
    return _layout(data[length_end : length_end + length], length_end + length)


def read_array(array: Array) -> NDArray[Any]:
    """Read an array that owns its memory, in this machine's byte order.

    Raises
    ------
    ValueError
        If the bytes are not those of an array of numbers.
    """
    dtype, shape, fortran, start = read_layout(array)
    count = math.prod(shape)
    if len(array.data) != start + count * dtype.itemsize:
        found = len(array.data) - start
        raise ValueError(f"it has {found} bytes of numbers for {shape} of {dtype}")
    values = np.frombuffer(array.data, dtype, count, start)
    values = values.reshape(shape, order="F" if fortran else "C")
    return values.astype(dtype.newbyteorder("="), order="C")


@lru_cache(_KNOWN_HEADERS)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = BytesIO()
    descr = np.lib.format.dtype_to_descr(dtype)
    np.lib.format.write_array_header_1_0(
        stream, {"descr": descr, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


@lru_cache(_KNOWN_HEADERS)
def _layout(header: bytes, start: int) -> Layout:
    match = _HEADER.fullmatch(header)
    if match is None:
        raise ValueError("its header is not that of an array of numbers")
    order, number, fortran, shape = (group.decode() for group in match.groups())
    if number not in _NUMBERS:
        raise ValueError(f"its dtype {order + number!r} is not one of PyTorch's")
    return Layout(
        np.dtype(order + number),
        tuple(int(size) for size in shape.split(",") if size.strip()),
        fortran == "True",
        start,
    )
