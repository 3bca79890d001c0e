"""Python objects passed between processes through shared memory.

Only a `Notice` (which slot, how many bytes) travels through a socket; the object itself
lies in a slot. A slot is an anonymous file that both sides map. It has no name, so
nothing can be left behind, whoever is killed, and the size of ``/dev/shm`` (64 MB in a
container) is no limit.
"""

import mmap
import os
import pickle
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from copyreg import dispatch_table
from io import BytesIO
from itertools import accumulate, pairwise
from multiprocessing import reduction
from typing import Any, Self

from flwr.app import Array

_LENGTH = struct.Struct("<Q")
_Rebuild = tuple[Callable[..., Array], tuple[Any, ...]]


def _rebuild_array(
    dtype: str, shape: tuple[int, ...], stype: str, data: memoryview
) -> Array:
    return Array(dtype, shape, stype, bytes(data))


def _reduce_array(array: Array) -> _Rebuild:
    data = pickle.PickleBuffer(array.data)
    return _rebuild_array, (array.dtype, array.shape, array.stype, data)


class _Pickler(pickle.Pickler):
    """Leaves the bytes of every Array out of the pickle stream."""

    dispatch_table = dispatch_table | {Array: _reduce_array}


def encode(value: object) -> list[memoryview]:
    """Pickle ``value`` without copying the bytes of its Flower ``Array`` objects.

    Return the pickle stream, then one view per ``Array``, in the stream's order.
    """
    stream = BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(stream, protocol=5, buffer_callback=buffers.append).dump(value)
    return [stream.getbuffer(), *(buffer.raw() for buffer in buffers)]


def decode(parts: Sequence[memoryview]) -> Any:
    """Rebuild what `encode` took apart; the result owns all of its memory."""
    # S301: the parts come from a process that this package started, over memory that
    # only the two share.
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  # bytes of this grid


class Slot:
    """Shared memory for one object at a time; it grows to the largest it has held.

    Of the processes that share a slot, one at a time may use it: the notices on the
    socket say which. A slot pickles only as an argument of a process that is being
    started, which then shares it. It owns the file that it is made of.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)

    @classmethod
    def make(cls) -> Self:
        """Make an empty slot."""
        return cls(_anonymous_file())

    def __reduce__(self) -> tuple[Callable[[Any], "Slot"], tuple[Any]]:
        return _attach, (reduction.DupFd(self._descriptor),)

    def write(self, value: object) -> int:
        """Put ``value`` in the slot; return the bytes used, which `read` asks for."""
        body = encode(value)
        lengths = [part.nbytes for part in body]
        head = struct.pack(f"<{len(body) + 1}Q", len(body), *lengths)
        ends = list(accumulate(lengths, initial=len(head)))
        self._cover(ends[-1])
        self._map[: len(head)] = head
        for part, (start, end) in zip(body, pairwise(ends), strict=True):
            self._map[start:end] = part
        return ends[-1]

    def read(self, size: int) -> Any:
        """Rebuild the object that `write` put here, maybe in another process."""
        self._cover(size)
        view = memoryview(self._map)
        (count,) = _LENGTH.unpack_from(view)
        lengths = struct.unpack_from(f"<{count}Q", view, _LENGTH.size)
        ends = list(accumulate(lengths, initial=_LENGTH.size * (count + 1)))
        return decode([view[start:end] for start, end in pairwise(ends)])

    def close(self) -> None:
        """Let go of the memory, which is freed when every process has done so."""
        os.close(self._descriptor)
        del self._map  # Closed with its last view, which a traceback may still hold.

    def _cover(self, size: int) -> None:
        if len(self._map) >= size:
            return
        if os.fstat(self._descriptor).st_size < size:
            os.ftruncate(self._descriptor, size)
        # The old map goes when its last view does.
        self._map = mmap.mmap(self._descriptor, 0)


def _attach(descriptor: Any) -> Slot:
    return Slot(descriptor.detach())


def _anonymous_file() -> int:
    """Make a file of one page without a name, in memory where the system can."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("flwr-asyncdrop")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, mmap.PAGESIZE)
    return descriptor
