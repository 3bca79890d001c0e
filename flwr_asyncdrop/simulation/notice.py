"""What travels on the socket between the local grid and a worker process."""

import socket
import struct
from typing import NamedTuple, Self

_LAYOUT = struct.Struct("<qQ")


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
            data = channel.recv(_LAYOUT.size, 0 if wait else socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        return cls(*_LAYOUT.unpack(data)) if data else None

    def send(self, channel: socket.socket) -> None:
        """Send the notice."""
        channel.sendall(_LAYOUT.pack(*self))


READY = Notice(-1, 0)
_FAILED = -2  # the slot of a notice that `size` bytes of text follow


def send_failure(channel: socket.socket, text: str) -> None:
    """Send a text instead of a slot."""
    data = text.encode()
    Notice(_FAILED, len(data)).send(channel)
    channel.sendall(data)


def read_failure(channel: socket.socket, notice: Notice) -> str | None:
    """Take the text that a notice announces, if it does."""
    if notice.slot != _FAILED:
        return None
    return channel.recv(notice.size, socket.MSG_WAITALL).decode()
