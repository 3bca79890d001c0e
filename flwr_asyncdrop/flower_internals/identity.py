"""What a message says about where it comes from, and the names that go with it.

Flower's engine fills in a message's identity and tells the process which run it
serves. LocalGrid stands in for the engine and does the same. Seen in flwr 1.34 to 1.42.
"""

import copy
import importlib

from flwr.app import Message
from flwr.common.constant import SUPERLINK_NODE_ID as SUPERLINK_NODE_ID
from flwr.common.constant import ErrorCode as ErrorCode

# Every release types Grid with Run, so its module has the name wherever Run is
# defined. The module does not export it, so mypy must look away.
from flwr.serverapp.grid.grid import Run as Run  # type: ignore[attr-defined]


def assume_identity(run_id: int) -> None:
    """Let this process create messages, as a ServerApp's process may.

    From flwr 1.38 on, ``Message`` asks the process for its run, node and task, and
    refuses to be created without them. An identity that is already there stays.
    Seen in flwr 1.38 to 1.42; flwr 1.37 needs none.
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


def unsent_copy(message: Message) -> Message:
    """Return a message with the same content, and metadata of its own without an id.

    Flower's grids set the id in place when they push. A remote grid gives a copy the
    id that the message had, so a SuperLink that has it already stores it once; no other
    grid takes the same object twice. Seen in flwr 1.34 to 1.42.
    """
    metadata = copy.copy(message.metadata)
    metadata.__dict__["_message_id"] = ""
    again = copy.copy(message)
    again.__dict__["_metadata"] = metadata
    return again


def stamp(message: Message, **fields: int | str) -> None:
    """Set fields of a message's metadata, by their public names, that have no setter.

    Flower's own grids do it like this. Seen in flwr 1.34 to 1.42.
    """
    for name, value in fields.items():
        message.metadata.__dict__[f"_{name}"] = value
