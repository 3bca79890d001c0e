"""Python objects passed between processes through shared memory.

A `Notice` travels through a socket; the object itself lies in a `Slot`, an anonymous
file that both sides map. It has no name, so nothing is left behind, whoever is killed,
and the size of ``/dev/shm`` (64 MB in a container) is no limit.
"""

import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Sequence
from copyreg import dispatch_table
from io import BytesIO
from itertools import accumulate, pairwise
from multiprocessing import reduction
from typing import Any, NamedTuple, Self

from flwr.app import Array

_LENGTH = struct.Struct("<Q")
_NOTICE = struct.Struct("<qQ")
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
    return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301  # bytes of this grid


class Slot:
    """Shared memory for one object at a time; it grows to the largest it has held.

    One process at a time may use it: the notices say which. It pickles only as an
    argument of a process that is being started, which then shares it.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, 0)

    @classmethod
    def make(cls) -> Self:
        """Make an empty slot of one page, in RAM where the system can."""
        if sys.platform == "linux":
            descriptor = os.memfd_create("flwr-asyncdrop")
        else:
            with tempfile.TemporaryFile() as file:
                descriptor = os.dup(file.fileno())
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return cls(descriptor)

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
        """Release the memory, which is freed when every process has done so."""
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


class Notice(NamedTuple):
    """Where an object lies: in which slot, and in how many bytes.

    Notices have a fixed length well below a socket's buffer, so each is sent and
    received whole.
    """

    slot: int
    size: int

    @classmethod
    def receive(cls, channel: socket.socket, *, wait: bool = True) -> Self | None:
        """Take the next notice; ``None`` if the other side has gone.

        Without `wait` also if there is none.
        """
        try:
            data = channel.recv(_NOTICE.size, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return cls(*_NOTICE.unpack(data)) if data else None

    def send(self, channel: socket.socket) -> None:
        """Send the notice."""
        channel.sendall(_NOTICE.pack(*self))


READY = Notice(-1, 0)
_FAILED = -2  # the slot of a notice that `size` bytes of text follow


def send_failure(channel: socket.socket, text: str) -> None:
    """Send a text instead of a slot."""
    data = text.encode(errors="backslashreplace")
    Notice(_FAILED, len(data)).send(channel)
    channel.sendall(data)


def read_failure(channel: socket.socket, notice: Notice) -> str | None:
    """Take the text that a notice announces, if it does."""
    if notice.slot != _FAILED:
        return None
    return channel.recv(notice.size, socket.MSG_WAITALL).decode()
