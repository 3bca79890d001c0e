"""What a real device reports about itself, and how the server asks for it."""

from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from flwr_asyncdrop.wire.records import records_of

_DEVICE = "asyncdrop-device"
_PROBE = "asyncdrop-greeting"

LARGEST_REPORTED = 1e15
"""A report with a number above it makes no sense, and is not read."""


@dataclass(frozen=True)
class DeviceReport:
    """What a device measured, and what its owner declared; 0 for unknown values."""

    # Local steps of the task; in the answer to a probe, of one with the full model.
    train_seconds: float = 0.0
    received_at: float = 0.0  # seconds on the device's own clock
    finished_at: float = 0.0
    memory: float = 0.0  # bytes that training may take
    capacity: float = 0.0  # declared speed, relative to the other devices of the fleet
    bandwidth: float = 0.0  # declared bytes a second, in each direction


_KEYS = {
    "train_seconds": "train-seconds",
    "received_at": "received-at",
    "finished_at": "finished-at",
    "memory": "memory-bytes",
    "capacity": "capacity",
    "bandwidth": "bytes-per-second",
}


def add_report(reply: Message, report: DeviceReport) -> None:
    """Put a report into a reply, on the device, unless there is one already."""
    entries = {key: float(getattr(report, name)) for name, key in _KEYS.items()}
    reply.content.setdefault(_DEVICE, ConfigRecord(entries))  # type: ignore[arg-type]  # a dict of floats is one of config values


def read_report(message: Message) -> DeviceReport | None:
    """Read a report on the server; None if there is none, or a value makes no sense."""
    records = {} if message.has_error() else records_of(message.content, ConfigRecord)
    if (record := records.get(_DEVICE)) is None:
        return None
    values = {name: record.get(key, 0.0) for name, key in _KEYS.items()}
    if not all(_is_sound(value) for value in values.values()):
        return None
    return DeviceReport(**{name: float(value) for name, value in values.items()})  # type: ignore[arg-type]  # numbers, as was just checked


def _is_sound(value: object) -> bool:
    # NaN fails both comparisons; an integer may be too large to become a float.
    return isinstance(value, int | float) and 0 <= value <= LARGEST_REPORTED


def make_probe(node_id: int, ttl: float) -> Message:
    """Build the message that asks a node what it can do, before its first task."""
    content = RecordDict({"config": ConfigRecord({_PROBE: True})})
    return Message(
        content=content,
        dst_node_id=node_id,
        message_type=MessageType.TRAIN,
        ttl=ttl,
        group_id="0",
    )


def is_probe(message: Message) -> bool:
    """Return, on the device, whether a message asks what it can do."""
    records = records_of(message.content, ConfigRecord).values()
    return any(record.get(_PROBE) is True for record in records)
