"""What a process that was forked for a task becomes before it does it."""

import json
import os
import signal
import socket
import sys
from dataclasses import dataclass

from flwr_asyncdrop.device.shim import ACCEPTED, GO, LENGTH, PATIENCE, require_own_peer

_STREAMS = 3


@dataclass(frozen=True)
class Handover:
    """What Flower started for a task: its command, and what the process has."""

    command: list[str]
    folder: str
    environ: dict[str, str]
    streams: list[int]
    """File descriptors that become the standard streams."""

    def put_on(self) -> None:
        """Make this process look as if it had been started for the task."""
        for number, stream in enumerate(self.streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(self.environ)
        os.chdir(self.folder)
        sys.argv = list(self.command)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def accept(connection: socket.socket) -> bool:
    """Take a task over, and make this process its own.

    Return whether the other side leaves it to this process; else it does it itself.
    """
    connection.settimeout(PATIENCE)
    try:
        require_own_peer(connection)
        task = receive(connection)
        connection.sendall(ACCEPTED + LENGTH.pack(os.getpid()))
        connection.settimeout(None)  # the other side says "go", or it hangs up
        if connection.recv(1) != GO:
            return False
        task.put_on()
    except (OSError, ValueError, TypeError):
        return False
    return True


def receive(connection: socket.socket) -> Handover:
    """Read a task: OSError if it does not come whole or in time, else ValueError."""
    data, streams, _, _ = socket.recv_fds(connection, LENGTH.size, _STREAMS)
    if len(data) != LENGTH.size or len(streams) != _STREAMS:
        raise ConnectionError("no task")
    size = LENGTH.unpack(data)[0]
    body = b""
    while len(body) < size:
        part = connection.recv(size - len(body))
        if not part:
            raise ConnectionError("half a task")
        body += part
    return Handover(**json.loads(body), streams=streams)
