"""The worker process of the local grid."""

import os
import pickle
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import connection, parent_process

import torch
from flwr.clientapp import ClientApp

from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.simulation.client_app import ClientAppSource, load_client_app
from flwr_asyncdrop.simulation.gpus import see_only
from flwr_asyncdrop.simulation.runner import ClientCall
from flwr_asyncdrop.simulation.safe_path import forget
from flwr_asyncdrop.simulation.terminal import leave_to_the_parent
from flwr_asyncdrop.simulation.transport import READY, Notice, Slot, send_failure


def serve(
    channel: socket.socket,
    slots: Sequence[Slot],
    client_app: bytes,
    threads: int,
    gpu: str,
) -> None:
    """Answer the calls in the slots that the channel's notices name.

    `client_app` is a pickled source, and `gpu` the only one that is seen, if any. It
    ends when the grid closes the channel, or when the grid's process ends.
    """
    forget()
    see_only(gpu)
    leave_to_the_parent()
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    with suppress(ConnectionError):  # the grid's process has ended
        try:
            # Not before: a module may ask for GPUs as it is imported.
            source: ClientAppSource = pickle.loads(client_app)  # noqa: S301  # the grid's
            app = load_client_app(source)
        except Exception as error:
            send_failure(channel, str(error))
            return
        READY.send(channel)
        while notice := Notice.receive(channel):
            slot = slots[notice.slot]
            size = _answer(slot, slot.read(notice.size), app)
            Notice(notice.slot, size).send(channel)


def _answer(slot: Slot, call: ClientCall, app: ClientApp) -> int:
    try:
        return slot.write(call.run(app))
    except Exception as error:
        reason = f"The ClientApp's reply cannot be sent: {one_line(error)}"
        return slot.write(call.fail(reason))


def _exit_with_parent() -> None:
    """End this process with its parent, even in the middle of a call."""
    if (parent := parent_process()) is not None:
        connection.wait([parent.sentinel])
        os._exit(1)
