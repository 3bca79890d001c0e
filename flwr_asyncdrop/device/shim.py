"""What Flower starts as ``flwr-clientapp``: hands the task to the trainer, and waits.

It runs by its path and without the site packages, so it starts in 10 ms and knows
only the standard library. If the trainer does not take the task, it becomes Flower's
``flwr-clientapp``; once it has said "go" it never does, so that no task runs twice.

    python -I -S shim.py SOCKET FLWR_CLIENTAPP [ARGUMENTS]
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
from types import FrameType

ACCEPTED, GO = b"A", b"G"
ENDED, KILLED = b"E", b"K"
"""How a task has ended; a byte with the status, or with the signal, follows."""
LENGTH = struct.Struct("!I")
PATIENCE = 5.0

_CRASHED, _SIGNALLED = 1, 128
_CREDENTIALS = struct.Struct("3i")
# An app with an environment of its own must not find the trainer's modules.
_OWN_ENVIRONMENT = "--allow-runtime-dependency-installation"


def main() -> None:
    """Run the task in the trainer, or else in this process."""
    path, plain, *arguments = sys.argv[1:]
    if _OWN_ENVIRONMENT not in arguments:
        try:
            connection = offer(path, [plain, *arguments])
        except (OSError, AttributeError):  # AttributeError: a system that is not Linux
            pass
        else:
            end_as(wait(connection))
    os.execv(plain, [plain, *arguments])  # noqa: S606  # Flower's own program


def offer(path: str, command: list[str]) -> socket.socket:
    """Offer a task to the trainer; return the connection once it has taken it.

    OSError: there is no trainer, it is another user's, or it does not answer in time.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE)
        connection.connect(path)
        require_own_peer(connection)
        folder = os.getcwd()  # noqa: PTH109  # pathlib takes longer than all the rest
        task = {"command": command, "folder": folder, "environ": dict(os.environ)}
        data = json.dumps(task).encode()
        socket.send_fds(connection, [LENGTH.pack(len(data))], [0, 1, 2])
        connection.sendall(data)
        if connection.recv(1) != ACCEPTED:
            raise ConnectionError("the trainer has not taken the task")
        process = LENGTH.unpack(connection.recv(LENGTH.size, socket.MSG_WAITALL))[0]
        connection.sendall(GO)
    except (OSError, struct.error):
        connection.close()
        raise ConnectionError("no trainer") from None
    connection.settimeout(None)
    pass_signals_on(process)
    return connection


def require_own_peer(connection: socket.socket) -> None:
    """Raise PermissionError unless the other end is a process of the same user."""
    size = _CREDENTIALS.size
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    user = _CREDENTIALS.unpack(data)[1]
    if user != os.geteuid():
        raise PermissionError(f"the other end is user {user}'s, not {os.geteuid()}'s")


def pass_signals_on(process: int) -> None:
    """Let the signals that end this process end the one that does the task."""

    def pass_on(number: int, _: FrameType | None) -> None:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            sys.exit(_CRASHED)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, pass_on)


def wait(connection: socket.socket) -> int:
    """Wait until the task is done; return its exit status, -N after signal N."""
    answer = connection.recv(2, socket.MSG_WAITALL)
    if len(answer) < 2:
        sys.stderr.write("flwr-clientapp: the task and its trainer have vanished\n")
        return _CRASHED
    return -answer[1] if answer[:1] == KILLED else answer[1]


def end_as(status: int) -> None:
    """End as the task has: with its status, or by its signal."""
    if status >= 0:
        sys.exit(status)
    name = signal.Signals(-status).name
    sys.stderr.write(f"flwr-clientapp: the task was ended by {name}\n")
    sys.stderr.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the task has left its own
    if -status not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
    sys.exit(_SIGNALLED - status)  # one that does not end a process


if __name__ == "__main__":
    main()
