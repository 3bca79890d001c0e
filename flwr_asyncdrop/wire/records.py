"""The records of a message, by kind."""

from collections.abc import Collection
from copy import copy
from typing import TypeVar

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


def records_of(content: RecordDict, kind: type[Record]) -> dict[str, Record]:
    """Return the records of a kind by name, in their order.

    For Flower's ``content.array_records`` and its like, which return a view that refers
    to itself and to the content: the arrays of the message would stay in memory until
    Python's garbage collector runs.
    """
    return {key: value for key, value in content.items() if isinstance(value, kind)}


def kind_of(message: Message) -> str:
    """Return what a message asks for, one of Flower's ``MessageType``.

    Its type may name a function of the app behind that: ``"train.mine"``.
    """
    return message.metadata.message_type.partition(".")[0]


def config_with(message: Message, key: str) -> ConfigRecord | None:
    """Return the config record of a message that has an entry, None if none has."""
    configs = records_of(message.content, ConfigRecord).values()
    return next((config for config in configs if key in config), None)


def configs_without(
    content: RecordDict, keys: Collection[str]
) -> dict[str, ConfigRecord]:
    """Return the config records by name, as others without these of their entries."""
    return {
        name: ConfigRecord({key: v for key, v in config.items() if key not in keys})
        for name, config in records_of(content, ConfigRecord).items()
    }


def unsent_with(message: Message, content: RecordDict) -> Message:
    """Return a new message like one that is not sent yet, with other content."""
    metadata = message.metadata
    return Message(
        content=content,
        dst_node_id=metadata.dst_node_id,
        message_type=metadata.message_type,
        ttl=metadata.ttl,
        group_id=metadata.group_id,
    )


def received_with(message: Message, content: RecordDict) -> Message:
    """Return another message like one that has come, with other content."""
    found = copy(message)
    found.content = content
    return found
