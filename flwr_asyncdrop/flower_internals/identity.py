"""What LocalGrid needs from Flower that Flower does not export.

Flower's engine is what normally fills in a message's identity and tells the
process which run it serves. LocalGrid stands in for the engine, so it does the
same, through the names below. They are gathered here because they move between
releases; everything else comes from ``flwr.app``, ``flwr.serverapp`` and
``flwr.clientapp``.
"""

import importlib

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode

# The Grid interface is typed with Run, so its module has the name in every release,
# whichever module defines it; but it does not re-export it, so mypy must look away.
from flwr.serverapp.grid.grid import Run  # type: ignore[attr-defined]

__all__ = ["SUPERLINK_NODE_ID", "ErrorCode", "Run", "assume_identity", "stamp"]


def assume_identity(run_id: int) -> None:
    """Let this process create messages, as a ServerApp's process may.

    From flwr 1.35 on, ``Message`` asks the process for its run, node and task, and
    refuses to be created where the engine has set none. An identity that is already
    there stays; older releases have no such thing.

    Parameters
    ----------
    run_id : int
        The run that the messages belong to.
    """
    try:
        identity = importlib.import_module("flwr.supercore.task_identity").TaskIdentity
    except ImportError:
        return
    try:
        _ = identity.run_id
    except RuntimeError:
        identity.task_id = 1
        identity.run_id = run_id
        identity.node_id = SUPERLINK_NODE_ID


def stamp(message: Message, **fields: int | str) -> None:
    """Set fields of the message's metadata that have no public setter.

    Parameters
    ----------
    message : Message
        Changed in place, as Flower's own grids do.
    **fields : int | str
        Metadata fields by their public names: ``message_id``, ``run_id``,
        ``src_node_id``, ``reply_to_message_id``.
    """
    for name, value in fields.items():
        message.metadata.__dict__[f"_{name}"] = value
