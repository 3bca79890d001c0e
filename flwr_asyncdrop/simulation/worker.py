"""The worker process of the local grid."""

import os
import signal
import socket
import threading
from collections.abc import Sequence
from multiprocessing import connection, parent_process

import torch

from flwr_asyncdrop.flower_internals.identity import ErrorCode
from flwr_asyncdrop.simulation.record import FAILED, READY, Record
from flwr_asyncdrop.simulation.task import (
    ClientAppSource,
    Task,
    answer,
    failure,
    load_client_app,
)
from flwr_asyncdrop.simulation.transport import Slot


def serve(
    channel: socket.socket,
    slots: Sequence[Slot],
    client_app: ClientAppSource,
    threads: int,
) -> None:
    """Answer tasks until the grid closes the channel or its process ends.

    Parameters
    ----------
    channel : socket.socket
        Where records come from and go to.
    slots : Sequence[Slot]
        Where the objects lie that records speak of.
    client_app : str | Callable[[], ClientApp]
        Loaded once, before the first task.
    threads : int
        Threads that PyTorch may use.
    """
    # Ctrl-C goes to the whole process group; the grid's process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        app = load_client_app(client_app)
    except Exception as error:
        text = str(error).encode()
        Record(FAILED, len(text)).send(channel)
        channel.sendall(text)
        return
    READY.send(channel)
    while record := Record.receive(channel):
        slot = slots[record.slot]
        task: Task = slot.read(record.size)
        try:
            size = slot.write(answer(app, task))
        except Exception as error:
            reason = f"The ClientApp's reply cannot be sent: {error}"
            size = slot.write(
                failure(task, ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
            )
        Record(record.slot, size).send(channel)


def _exit_with_parent() -> None:
    """End this process with its parent, even in the middle of a task."""
    if (parent := parent_process()) is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
