"""The trainer: a process that has imported everything, and is forked for each task.

A forked process is as fresh as one that Flower starts: nothing of a task stays for the
next, its memory is returned, and if it crashes it takes nothing along. It lacks only
the start: Python, Flower and PyTorch are there. The trainer itself computes nothing
and starts no thread, as neither would survive a fork.
"""

import fcntl
import gc
import importlib
import logging
import os
import selectors
import signal
import socket
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from flwr_asyncdrop.device.children import Children
from flwr_asyncdrop.device.private import remove_if_abandoned
from flwr_asyncdrop.device.programs import load_program
from flwr_asyncdrop.device.shim import ENDED
from flwr_asyncdrop.device.task import accept
from flwr_asyncdrop.device.thin import forget_package

_BACKLOG = 16
_PROGRAM = "flwr-clientapp"
_CRASHED = 1
_PATIENCE = 5.0


def main(arguments: Sequence[str]) -> int:
    """Serve on a socket, after importing modules, until the standard input ends.

    Return the exit status. A process that was forked for a task returns after it.
    """
    path, *modules = arguments
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends an import, and no more
    clientapp = load_program(_PROGRAM)
    preload(modules)
    connection = serve(Path(path), sys.stdin.fileno())
    if connection is None:
        remove_if_abandoned(Path(path).parent, _PATIENCE)  # its owner was killed?
        return 0
    with connection:
        if not accept(connection):
            return _CRASHED
        renew_randomness()
        forget_package()
        die_with(connection)
        status = _status_of(clientapp)
        die_with(connection, enabled=False)  # the shim ends when it knows
        with suppress(OSError):
            connection.send(ENDED + bytes([status]))
    return status


def die_with(connection: socket.socket, *, enabled: bool = True) -> None:
    """Let the system kill this process when the other end closes, whatever it does.

    A shim that is killed is a task that is killed, as with Flower's own program.
    """
    number = connection.fileno()
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    if not enabled:
        fcntl.fcntl(number, fcntl.F_SETFL, flags & ~os.O_ASYNC)
        return
    fcntl.fcntl(number, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(number, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(number, fcntl.F_SETFL, flags | os.O_ASYNC)
    with suppress(BlockingIOError):
        if not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
            os.kill(os.getpid(), signal.SIGKILL)  # it has closed before


def preload(modules: Iterable[str]) -> None:
    """Import what tasks will need, and set it apart from what they will change."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module does when it is imported
            logging.getLogger("flwr").warning(
                "the trainer cannot import %s (%s), so every task will", name, error
            )
    gc.collect()
    gc.freeze()  # else the first collection of every task copies all these pages


def serve(path: Path, owner: int) -> socket.socket | None:
    """Fork for each connection to the socket, until the descriptor `owner` ends.

    Return its connection in a forked process, and None at the end in the trainer.
    """
    path.unlink(missing_ok=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the owner
    children = Children()
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener,
        selectors.DefaultSelector() as selector,
    ):
        umask = os.umask(0o177)  # so that it is its user's alone from the beginning
        try:
            listener.bind(str(path))
        except FileNotFoundError:  # its owner has ended, and the folder is gone
            return None
        finally:
            os.umask(umask)
        listener.listen(_BACKLOG)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(owner, selectors.EVENT_READ)
        selector.register(children.wakes, selectors.EVENT_READ)
        while owner not in (ready := [key.fd for key, _ in selector.select()]):
            if children.wakes.fileno() in ready:
                children.reap()
            if listener.fileno() not in ready:
                continue
            connection, _ = listener.accept()
            process = fork()
            if process is None:
                connection.close()
                continue
            if process == 0:
                children.forget()
                return connection
            children.add(process, connection)
    children.forget()
    return None


def fork() -> int | None:
    """Return what `os.fork` does, or None if there is no process for it."""
    with warnings.catch_warnings():
        # From Python 3.12 on. The other threads are OpenBLAS's, which stops them.
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            return os.fork()
        except OSError as error:  # no memory at the moment, or too many processes
            logging.getLogger("flwr").warning(
                "the trainer cannot be forked (%s): a task starts the plain way", error
            )
            return None


def renew_randomness() -> None:
    """Draw other random numbers than the other forked processes, as Python's own do."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()


def _status_of(program: Callable[[], object]) -> int:
    """Call a program; return the status that its process would end with."""
    try:
        program()
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code & 0xFF
        if end.code is None:
            return 0
        with suppress(OSError):  # as Python does at the end of a process
            sys.stderr.write(f"{end.code}\n")
            sys.stderr.flush()
        return _CRASHED
    except BaseException:
        logging.getLogger("flwr").exception("%s has failed", _PROGRAM)
        return _CRASHED
    return 0
