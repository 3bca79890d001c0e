"""What a real device says of itself, and how it is asked."""

import math
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

_DEVICE = "asyncdrop-device"
_GREETING = "asyncdrop-greeting"
_LARGEST = 1e15


@dataclass(frozen=True)
class DeviceReport:
    """What a device measured, and what its owner declared; 0 for what is not known.

    Attributes
    ----------
    train_seconds : float
        Seconds that the local steps of the task took; in the answer to a greeting,
        that those of a task with the full model would take.
    received_at, finished_at : float
        When the task was there, and when it was done, in seconds on the device's own
        clock.
    memory : float
        Bytes that training may take.
    capacity : float
        Declared speed, relative to the other devices of the fleet.
    bandwidth : float
        Declared bytes a second, in each direction.
    """

    train_seconds: float = 0.0
    received_at: float = 0.0
    finished_at: float = 0.0
    memory: float = 0.0
    capacity: float = 0.0
    bandwidth: float = 0.0


_KEYS = {
    "train_seconds": "train-seconds",
    "received_at": "received-at",
    "finished_at": "finished-at",
    "memory": "memory-bytes",
    "capacity": "capacity",
    "bandwidth": "bytes-per-second",
}


def add_report(reply: Message, report: DeviceReport) -> None:
    """Put a report into a reply, on the device; what is there of it already stays."""
    entries = {key: float(getattr(report, name)) for name, key in _KEYS.items()}
    reply.content.setdefault(_DEVICE, ConfigRecord(entries))  # type: ignore[arg-type]  # a dict of floats is one of config values


def read_report(message: Message) -> DeviceReport | None:
    """Read, on the server, what a device says of itself.

    Returns
    -------
    DeviceReport or None
        None if it says nothing, or if any of it is not a number that can be meant.
    """
    if message.has_error():
        return None
    record = message.content.config_records.get(_DEVICE)
    if record is None:
        return None
    values = {name: record.get(key, 0.0) for name, key in _KEYS.items()}
    if not all(_is_sound(value) for value in values.values()):
        return None
    return DeviceReport(**{name: float(value) for name, value in values.items()})  # type: ignore[arg-type]  # numbers, as was just checked


def _is_sound(value: object) -> bool:
    if not isinstance(value, int | float):
        return False
    return math.isfinite(value) and 0 <= value <= _LARGEST


def make_probe(node_id: int, ttl: float) -> Message:
    """Build the message that asks a node what it can do, before its first task.

    Parameters
    ----------
    node_id : int
        The node.
    ttl : float
        Seconds after which Flower gives the message up.
    """
    content = RecordDict({"config": ConfigRecord({_GREETING: True})})
    return Message(
        content=content,
        dst_node_id=node_id,
        message_type=MessageType.TRAIN,
        ttl=ttl,
        group_id="0",
    )


def is_probe(message: Message) -> bool:
    """Return, on the device, whether a message asks what it can do."""
    records = message.content.config_records.values()
    return any(record.get(_GREETING) is True for record in records)
