"""A device's own state between its tasks, in Flower's context."""

from collections.abc import Mapping

from flwr.app import ArrayRecord, Context, Message

from flwr_asyncdrop import wire
from flwr_asyncdrop.submodel import State

_PREFIX = "asyncdrop"


def device_of(message: Message) -> str:
    """Return a name of the device that does a task; a node may play several."""
    partition = wire.read_task(message).partition_id
    return "own" if partition is None else str(partition)


def read_client_state(context: Context, partition: int) -> dict[str, State]:
    """Return a device's state, by name; a node may play several, with one each."""
    prefix = f"{_PREFIX}.{partition}."
    return {
        key.removeprefix(prefix): wire.from_record(record)
        for key, record in wire.records_of(context.state, ArrayRecord).items()
        if key.startswith(prefix)
    }


def write_client_state(
    context: Context, partition: int, states: Mapping[str, State]
) -> None:
    """Replace a device's state."""
    prefix = f"{_PREFIX}.{partition}."
    for key in [k for k in context.state if k.startswith(prefix)]:
        del context.state[key]
    for name, state in states.items():
        context.state[prefix + name] = wire.to_record(state)
