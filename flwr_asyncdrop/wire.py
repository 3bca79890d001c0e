"""The only reader and writer of Flower's message records.

A task travels as one ``ArrayRecord`` (the submodel) and one ``ConfigRecord``: the
user's own train config plus the keys below. The kept units never travel: the client
learns the widths from the shapes that it receives.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from flwr.app import (
    DEFAULT_TTL,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    RecordDict,
)

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.npy import read_array, write_array
from flwr_asyncdrop.submodel.types import State

__all__ = [
    "RecordKeys",
    "Reply",
    "TaskConfig",
    "array_bytes",
    "flat_metrics",
    "from_record",
    "make_task",
    "read_config",
    "read_evaluation",
    "read_reply",
    "read_task",
    "to_record",
]

SEED = "asyncdrop-seed"
PARTITION_ID = "partition-id"
NUM_PARTITIONS = "num-partitions"
ROUND = "server-round"


@dataclass(frozen=True)
class RecordKeys:
    """Where a Flower project keeps its records; the defaults are Flower's.

    Attributes
    ----------
    arrays, config : str
        Keys of the ``ArrayRecord`` and the ``ConfigRecord`` in a message.
    num_examples : str
        Key of the number of training examples in the reply's ``MetricRecord``.
    """

    arrays: str = "arrays"
    config: str = "config"
    num_examples: str = "num-examples"


@dataclass(frozen=True)
class TaskConfig:
    """What the server tells the client about a task, beside the user's config.

    Attributes
    ----------
    round : int
        Round in which the task was dispatched, from 1.
    seed : int
        Seed of everything random in the task's local training.
    partition_id, num_partitions : int or None
        The simulated device that the node plays; None on a real fleet, where a node
        knows its own data.
    """

    round: int
    seed: int
    partition_id: int | None = None
    num_partitions: int | None = None

    def entries(self) -> Iterator[tuple[str, int]]:
        """Yield the keys and values that go into the ``ConfigRecord``."""
        yield ROUND, self.round
        yield SEED, self.seed
        if self.partition_id is not None and self.num_partitions is not None:
            yield PARTITION_ID, self.partition_id
            yield NUM_PARTITIONS, self.num_partitions


@dataclass(frozen=True)
class Reply:
    """A client's reply that fits its task.

    Attributes
    ----------
    arrays : dict of str to Tensor
        The trained submodel, in the shapes that were sent.
    num_examples : int
        Examples that it was trained on.
    metrics : RecordDict
        The reply's metric records, for Flower's aggregation functions.
    num_bytes : int
        Size of the arrays on the wire.
    """

    arrays: State
    num_examples: int
    metrics: RecordDict
    num_bytes: int


def to_record(state: State) -> ArrayRecord:
    """Serialise tensors for the wire."""
    record = ArrayRecord()
    for name, tensor in state.items():
        record[name] = write_array(tensor)
    return record


def from_record(record: ArrayRecord) -> State:
    """Read tensors that own their memory from the wire."""
    return {key: torch.from_numpy(read_array(array)) for key, array in record.items()}


def array_bytes(record: ArrayRecord) -> int:
    """Return the size of the arrays on the wire, in bytes."""
    return sum(len(array.data) for array in record.values())


def make_task(
    arrays: ArrayRecord,
    config: Mapping[str, object],
    task: TaskConfig,
    *,
    node_id: int,
    keys: RecordKeys,
    ttl: float = DEFAULT_TTL,
    message_type: str = MessageType.TRAIN,
) -> Message:
    """Build the message that asks a node to train, or to evaluate, a model.

    Parameters
    ----------
    arrays : ArrayRecord
        The submodel, or the global model.
    config : mapping of str to config values
        The user's train or evaluate config.
    task : TaskConfig
        What the server adds to it.
    node_id : int
        The node to do it.
    keys : RecordKeys
        Where the records go.
    ttl : float
        Seconds after which Flower gives the message and its reply up.
    message_type : str
        Flower's ``MessageType.TRAIN`` or ``MessageType.EVALUATE``.
    """
    record = ConfigRecord({**config, **dict(task.entries())})  # type: ignore[dict-item]  # the values come out of a ConfigRecord
    content = RecordDict({keys.arrays: arrays, keys.config: record})
    return Message(
        content=content,
        dst_node_id=node_id,
        message_type=message_type,
        ttl=ttl,
        group_id=str(task.round),
    )


def read_config(message: Message) -> dict[str, object]:
    """Return, on the client, the entries of all config records of a message."""
    merged: dict[str, object] = {}
    for record in message.content.config_records.values():
        merged.update(record)
    return merged


def read_task(message: Message) -> TaskConfig:
    """Read, on the client, what `make_task` added to the user's config.

    A message without these keys (from a plain Flower strategy) reads as round 0,
    seed 0, and no partition.
    """
    merged = read_config(message)
    return TaskConfig(
        round=_integer(merged, ROUND) or 0,
        seed=_integer(merged, SEED) or 0,
        partition_id=_integer(merged, PARTITION_ID),
        num_partitions=_integer(merged, NUM_PARTITIONS),
    )


def read_reply(
    message: Message, shapes: Mapping[str, tuple[int, ...]], keys: RecordKeys
) -> Reply:
    """Read a client's reply and check that it can be merged.

    Parameters
    ----------
    message : Message
        The reply.
    shapes : mapping of str to tuple of int
        Name and shape of every array that was sent.
    keys : RecordKeys
        Where the records are.

    Raises
    ------
    ReplyError
        If the client raised, or if a record, array, shape or number is not as it
        must be; one line with the mend.
    """
    content = _content(message)
    arrays = _single_arrays(content)
    _check_names(arrays, shapes)
    state = {name: _read_array(arrays, name, shapes[name]) for name in shapes}
    metrics, num_examples = _read_metrics(content, keys.num_examples)
    return Reply(
        arrays=state,
        num_examples=num_examples,
        metrics=metrics,
        num_bytes=array_bytes(arrays),
    )


def read_evaluation(message: Message, keys: RecordKeys) -> RecordDict:
    """Read what a client measured, for Flower's aggregation functions.

    Parameters
    ----------
    message : Message
        The reply to a ``MessageType.EVALUATE``.
    keys : RecordKeys
        Where the records are.

    Raises
    ------
    ReplyError
        If the client raised, or does not say on how many examples it measured.
    """
    metrics, _ = _read_metrics(_content(message), keys.num_examples)
    return metrics


def flat_metrics(content: RecordDict) -> dict[str, float | int]:
    """Return the scalar metrics of all metric records, later records winning."""
    flat: dict[str, float | int] = {}
    for record in content.metric_records.values():
        flat.update(
            {key: val for key, val in record.items() if isinstance(val, float | int)}
        )
    return flat


def _integer(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) else None


def _content(message: Message) -> RecordDict:
    if message.has_error():
        reason = " ".join((message.error.reason or "").split()) or "no reason given"
        raise ReplyError(
            "client-error",
            f"the client failed with code {message.error.code}: {reason}",
        )
    return message.content


def _single_arrays(content: RecordDict) -> ArrayRecord:
    records = list(content.array_records.values())
    if len(records) != 1:
        raise ReplyError(
            "arrays",
            f"the reply carries {len(records)} ArrayRecords: return exactly one, with "
            "the trained state_dict",
        )
    return records[0]


def _check_names(arrays: ArrayRecord, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if arrays.keys() != shapes.keys():
        odd = sorted(arrays.keys() ^ shapes.keys())
        raise ReplyError(
            "arrays",
            f"the reply's arrays differ from those sent in {odd[0]!r}"
            f"{f' and {len(odd) - 1} more' if len(odd) > 1 else ''}: return the "
            "state_dict of the model that was loaded from the message",
        )


def _read_array(arrays: ArrayRecord, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    try:
        values = read_array(arrays[name])
    except Exception as error:
        # A stranger's bytes can make NumPy raise nearly anything, BadZipFile included.
        reason = " ".join(str(error).split())
        raise ReplyError(
            "arrays",
            f"array {name!r} cannot be read: {reason}; return the state_dict as an "
            "ArrayRecord",
        ) from error
    if not isinstance(values, np.ndarray):
        raise ReplyError("arrays", f"array {name!r} is an archive, not an array")
    if values.shape != shape:
        raise ReplyError(
            "shape",
            f"array {name!r} came back with shape {values.shape} instead of {shape}: "
            "train the model that was loaded from the message, not the full one",
        )
    if values.dtype.kind not in "fiub":
        raise ReplyError(
            "arrays", f"array {name!r} has dtype {values.dtype}, not a number"
        )
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ReplyError(
            "non-finite",
            f"array {name!r} holds NaN or infinity: lower the learning rate, or clip "
            "the gradients",
        )
    return torch.from_numpy(values)


def _read_metrics(content: RecordDict, key: str) -> tuple[RecordDict, int]:
    """Return the metric records, and the number of examples in one of them.

    That one comes first, where Flower's aggregation functions look for it.
    """
    records = content.metric_records
    found = next((name for name, record in records.items() if key in record), None)
    if found is None:
        raise ReplyError(
            "num-examples",
            f"the reply's MetricRecord has no {key!r}: add the number of examples",
        )
    value = records[found][key]
    if not isinstance(value, int | float) or not 1 <= value < math.inf:
        raise ReplyError(
            "num-examples",
            f"{key!r} is {value!r}: it must be a positive number of examples",
        )
    return RecordDict({found: records[found], **records}), int(value)
