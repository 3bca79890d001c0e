"""What travels on the socket between the local grid and a worker process."""

import socket
import struct
from typing import NamedTuple, Self

_LAYOUT = struct.Struct("<qQ")


class Record(NamedTuple):
    """What travels between the grid and a worker: where an object lies.

    Records have a fixed length well below a socket's buffer, so each is sent and
    received whole.
    """

    slot: int
    size: int

    @classmethod
    def receive(cls, channel: socket.socket) -> Self | None:
        """Wait for the next record; ``None`` when the other side has gone."""
        return cls._read(channel, 0)

    @classmethod
    def receive_now(cls, channel: socket.socket) -> Self | None:
        """Take the next record; ``None`` when there is none."""
        try:
            return cls._read(channel, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    @classmethod
    def _read(cls, channel: socket.socket, flags: int) -> Self | None:
        data = channel.recv(_LAYOUT.size, flags)
        return cls(*_LAYOUT.unpack(data)) if data else None

    def send(self, channel: socket.socket) -> None:
        """Send the record."""
        channel.sendall(_LAYOUT.pack(*self))


READY = Record(-1, 0)
FAILED = -2  # The slot of a record that `size` bytes of text follow.


def receive_text(channel: socket.socket, size: int) -> str:
    """Take the text that follows a record whose slot is ``FAILED``."""
    return channel.recv(size, socket.MSG_WAITALL).decode()
