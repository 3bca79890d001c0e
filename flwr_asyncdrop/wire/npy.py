"""Tensors as the bytes of Flower's ``Array``, and back, with one copy at the most.

The bytes are those of ``numpy.save``, as Flower's own are. Only headers of numbers are
read, within bounds, and only if there are bytes for them all: foreign bytes can neither
bring a pickle nor make the server allocate more than they carry.
"""

import math
from copy import copy
from functools import cache, lru_cache
from io import BytesIO
from typing import Any, NamedTuple

import numpy as np
import torch
from flwr.app import Array, ArrayRecord
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import shown
from flwr_asyncdrop.submodel.types import State

CODED = "asyncdrop."
"""How the ``stype`` of a coded array begins; the scheme's name follows."""

_STYPE = "numpy.ndarray"
_PREFIX = npy.MAGIC_LEN + 2  # magic, version, and the shortest length of a header
_LONGEST = 1024  # bytes up to the numbers; those of numbers have 128 or little more
_MOST = np.iinfo(np.intp).max
_KNOWN_HEADERS = 4096  # above the number of tensors of a model
# Version 3 differs from 2 only in names of fields, which numbers do not have.
_READERS = {
    (1, 0): npy.read_array_header_1_0,
    (2, 0): npy.read_array_header_2_0,
    (3, 0): npy.read_array_header_2_0,
}
# What PyTorch has too: no objects, texts, dates, or extended precision.
_NUMBERS = frozenset(np.dtype(code).str[1:] for code in "?bBhHiIqQefdFD")


class Layout(NamedTuple):
    """What a header says; the shape is not yet compared with the number of bytes."""

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
    return Array(_name(values.dtype), values.shape, _STYPE, data)


def read_layout(array: Array) -> Layout:
    """Read what an array is said to be; ValueError if it is no array of numbers."""
    if array.stype != _STYPE:
        raise ValueError(f"it is serialised as {shown(array.stype)}, not {_STYPE!r}")
    return _layout(array.data[: array.data.find(b"\n", _PREFIX, _LONGEST) + 1])


def read_array(array: Array) -> NDArray[Any]:
    """Read an array that owns its memory, in this machine's byte order.

    ValueError if the bytes are not those of an array of numbers.
    """
    layout = read_layout(array)
    numbers = _numbers(array, layout)
    return numbers.astype(layout.dtype.newbyteorder("="), order="C")


def view_array(array: Array) -> NDArray[Any]:
    """Read an array as `read_array`, on its own bytes where they are as it needs them.

    Nobody may change what this returns: others may have the same bytes. Fresh memory
    for a large model costs more than all that is done with its numbers.
    """
    layout = read_layout(array)
    numbers = _numbers(array, layout)
    if not (numbers.size and _is_as_needed(numbers, layout)):
        return numbers.astype(layout.dtype.newbyteorder("="), order="C")
    return np.asarray(_Writable(numbers))


def _numbers(array: Array, layout: Layout) -> NDArray[Any]:
    """Return the numbers on their bytes, which NumPy lets nobody write."""
    dtype, shape, fortran, start = layout
    count = math.prod(shape)
    if len(array.data) != start + count * dtype.itemsize:
        found = len(array.data) - start
        raise ValueError(f"it has {found} bytes of numbers for {shape} of {dtype}")
    values: NDArray[Any] = np.frombuffer(array.data, dtype, count, start)
    return values.reshape(shape, order="F" if fortran else "C")


def _is_as_needed(numbers: NDArray[Any], layout: Layout) -> bool:
    flags = numbers.flags
    return layout.dtype.isnative and flags.aligned and not layout.fortran


class _Writable:
    """Numbers that say that they can be written, which PyTorch asks for."""

    def __init__(self, numbers: NDArray[Any]) -> None:
        self._numbers = numbers
        about = numbers.__array_interface__
        self.__array_interface__ = {**about, "data": (about["data"][0], False)}


def views_of(record: ArrayRecord) -> State:
    """Return the tensors of a record, each as `view_array` has it."""
    return {name: torch.from_numpy(view_array(array)) for name, array in record.items()}


def array_size(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that `write_array` makes of a tensor."""
    numbers = numpy_dtype(dtype)
    return len(_header(numbers, shape)) + math.prod(shape) * numbers.itemsize


def copy_of_record(record: ArrayRecord) -> ArrayRecord:
    """Return a record of its own on the same bytes.

    ``ArrayRecord(dict(record))`` is the same, and takes four times as long.
    """
    copied = ArrayRecord()
    for name, array in record.items():
        copied[name] = copy(array)
    return copied


def to_record(state: State) -> ArrayRecord:
    """Serialise tensors for the wire."""
    record = ArrayRecord()
    for name, tensor in state.items():
        record[name] = write_array(tensor)
    return record


def from_record(record: ArrayRecord) -> State:
    """Read tensors that own their memory.

    ValueError if one cannot be read; ConfigError, which is one, if it is coded, or if
    this is no record.
    """
    if not isinstance(record, ArrayRecord):
        raise ConfigError(
            f"these arrays are of type {type(record).__name__}: pass the ArrayRecord "
            "itself, message.content['arrays'], and no state_dict of it"
        )
    refuse_coded(record)
    return {key: torch.from_numpy(read_array(array)) for key, array in record.items()}


def refuse_coded(record: ArrayRecord) -> None:
    """Raise ConfigError if an array of a record is coded."""
    if any(array.stype.startswith(CODED) for array in record.values()):
        raise ConfigError(
            "the server compresses the arrays, and nothing has decoded them: add "
            "CodecMod() to the client, ClientApp(mods=[CodecMod()]), before mods that "
            "read arrays"
        )


def array_bytes(record: ArrayRecord) -> int:
    """Return the size of the arrays on the wire, in bytes."""
    return sum(len(array.data) for array in record.values())


@cache
def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """Return NumPy's name of a dtype; TypeError if it has none."""
    return torch.empty(0, dtype=dtype).numpy().dtype


@cache
def _name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


@lru_cache(_KNOWN_HEADERS)
def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    stream = BytesIO()
    said = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(stream, said)
    return stream.getvalue()


@lru_cache(_KNOWN_HEADERS)
def _layout(header: bytes) -> Layout:
    if not header.startswith(npy.MAGIC_PREFIX):
        raise ValueError("it does not begin as numpy.save would begin it")
    stream = BytesIO(header)
    try:
        read = _READERS[npy.read_magic(stream)]
        shape, fortran, dtype = read(stream, max_header_size=_LONGEST)
        if stream.tell() != len(header) or dtype.str[1:] not in _NUMBERS:
            raise ValueError(f"{dtype} of {stream.tell()} bytes")
        if not all(type(size) is int and 0 <= size <= _MOST for size in shape):
            raise ValueError(f"shape {shape}")
    except Exception as error:  # whatever a stranger's bytes make NumPy raise
        raise ValueError("its header is not that of an array of numbers") from error
    return Layout(dtype, shape, fortran, len(header))
