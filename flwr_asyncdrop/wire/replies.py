"""Reading a client's reply, and checking that it can be merged."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import (
    Array,
    ArrayRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from torch import Tensor

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.readable import printable_error, shown
from flwr_asyncdrop.submodel.narrowing.wrappers import NAMELESS, wrapped_as
from flwr_asyncdrop.submodel.types import State
from flwr_asyncdrop.wire.advice import advice
from flwr_asyncdrop.wire.arrays import read_sound_array
from flwr_asyncdrop.wire.coded import is_coded, read_trained
from flwr_asyncdrop.wire.coding import Coding
from flwr_asyncdrop.wire.devices import DeviceReport, read_report
from flwr_asyncdrop.wire.frozen import asks_for_frozen
from flwr_asyncdrop.wire.metrics import MAX_EXAMPLES, read_metrics
from flwr_asyncdrop.wire.npy import CODED, array_bytes, to_record
from flwr_asyncdrop.wire.packing import is_packed, unpack, unpacked
from flwr_asyncdrop.wire.records import kind_of, received_with, records_of
from flwr_asyncdrop.wire.tasks import RecordKeys

# Those of the model, those beside it, metrics and configs.
_MOST_RECORDS = 100
_MOST_ARRAYS = 10_000  # that come as one with what a client has measured
_PERSONAL = (
    "; layers that are the device's own have load_personal and save_personal "
    "(docs/migrating.md#personal-layers)"
)
_BESIDE = (
    "; tensors of two models go into it under names of their own, and records beside "
    "the model, such as SCAFFOLD's, need an aggregator (examples/custom-algorithm)"
)
_LOADED = "that was loaded from the message"


@dataclass(frozen=True)
class Expected:
    """What a reply to a task must be like."""

    shapes: Mapping[str, tuple[int, ...]]  # of every array that was sent
    dtypes: Mapping[str, torch.dtype]  # of the model's tensors
    keys: RecordKeys = field(default_factory=RecordKeys)
    max_examples: int = MAX_EXAMPLES
    # The names of the tensors in each record that was sent beside the model.
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)
    coding: Coding = field(default_factory=Coding)
    sent: State = field(default_factory=dict)  # the weights, if they were coded


@dataclass(frozen=True)
class Reply:
    """A client's reply that fits its task."""

    arrays: State  # in the shapes that were sent and the model's dtypes
    num_examples: int
    metrics: RecordDict  # the metric records, for Flower's aggregation functions
    num_bytes: int  # of the arrays on the wire
    report: DeviceReport | None = None
    # The records that came back beside the model.
    extra: Mapping[str, State] = field(default_factory=dict)


def read_reply(message: Message, expected: Expected) -> Reply:
    """Read a client's reply; ReplyError if it cannot be merged, with its kind."""
    content = _content(message)
    records = _array_records(content, expected)
    metrics, num_examples = read_metrics(
        content, expected.keys.num_examples, expected.max_examples
    )
    model, *beside = records
    arrays = {
        name: _read_trained(name, model[name], expected) for name in expected.shapes
    }
    extra = [
        {name: _read(name, record[name], expected) for name in names}
        for record, names in zip(beside, expected.extra.values(), strict=True)
    ]
    return Reply(
        arrays=arrays,
        num_examples=num_examples,
        metrics=metrics,
        num_bytes=sum(map(array_bytes, records)),
        report=read_report(message),
        extra=dict(zip(expected.extra, extra, strict=True)),
    )


def in_flowers_arrays(message: Message, reply: Reply) -> Message:
    """Return the message of a reply as its client made it, in arrays of Flower's own.

    It is the message itself, if they travelled so; else another one that shares all
    but its arrays with it.
    """
    records = records_of(message.content, ArrayRecord)
    arrays = [array for record in records.values() for array in record.values()]
    if not any(array.stype.startswith(CODED) for array in arrays):
        return message
    made = {key: to_record(reply.extra.get(key, reply.arrays)) for key in records}
    return received_with(message, RecordDict({**message.content, **made}))


def unpacked_evaluation(message: Message) -> Message:
    """Return a reply to an evaluation with its arrays apart, if they came as one.

    It is the message itself if they did not, or are broken.
    """
    if message.has_error():
        return message
    try:
        content = unpacked(message.content, _MOST_ARRAYS)
    except ValueError:
        return message
    return message if content is message.content else received_with(message, content)


def _read_trained(name: str, array: Array, expected: Expected) -> Tensor:
    coding = expected.coding
    if coding.name and is_coded(name, expected.shapes[name], expected.dtypes[name]):
        return read_trained(name, array, expected.sent[name], coding)
    return _read(name, array, expected)


def _read(name: str, array: Array, expected: Expected) -> Tensor:
    return read_sound_array(name, array, expected.shapes[name], expected.dtypes[name])


def read_evaluation(
    message: Message, keys: RecordKeys, max_examples: int = MAX_EXAMPLES
) -> RecordDict:
    """Read what a client measured, for Flower's aggregation functions.

    Its metric records come first. ReplyError if it raised, or does not say on how many
    examples it measured.
    """
    content = _content(message)
    metrics, _ = read_metrics(content, keys.num_examples, max_examples)
    for name, record in content.items():
        if not isinstance(record, MetricRecord):
            metrics.setdefault(name, record)
    return metrics


def _content(message: Message) -> RecordDict:
    if message.has_error():
        text = message.error.reason or ""
        fix = advice(text, evaluates=kind_of(message) == MessageType.EVALUATE)
        reason = printable_error(text)
        raise ReplyError(
            "client-error",
            f"the client failed with code {shown(message.error.code)}: "
            f"{reason or 'no reason given'}{f'; {fix}' if fix else ''}",
        )
    content = message.content
    if asks_for_frozen(message):
        raise ReplyError(
            "frozen",
            "the client lacks the frozen tensors: its next task brings them",
        )
    if len(content) > _MOST_RECORDS:
        raise ReplyError(
            "records",
            f"the reply carries {len(content):,} records: return at most "
            f"{_MOST_RECORDS}, one of them with the trained state_dict",
        )
    return content


def _array_records(content: RecordDict, expected: Expected) -> list[ArrayRecord]:
    """Return the model's record, and then those beside it, in the order sent."""
    records = records_of(content, ArrayRecord)
    extra = {name: records.pop(name, None) for name in expected.extra}
    if len(records) != 1:
        raise ReplyError(
            "records",
            f"the reply carries {len(records)} ArrayRecords: return exactly one, with "
            "the trained state_dict" + _BESIDE * (len(records) > 1),
        )
    (arrays,) = records.values()
    arrays = _unpacked(arrays, expected.shapes)
    _check_names(arrays, expected.shapes)
    found = [arrays]
    for name, record in extra.items():
        if record is None:
            raise ReplyError(
                "records",
                f"the reply lacks the record {name!r} that came with the task: return "
                "what the algorithm's local objective gives",
            )
        record = _unpacked(record, expected.extra[name])
        _check_names(record, expected.extra[name])
        found.append(record)
    return found


def _unpacked(record: ArrayRecord, names: Collection[str]) -> ArrayRecord:
    if not is_packed(record):
        return record
    try:
        return unpack(record, len(names))
    except ValueError as error:
        raise ReplyError(
            "codec",
            f"the arrays that came back as one cannot be told apart: {error}; let "
            "CodecMod() pack the reply",
        ) from error


def _check_names(arrays: ArrayRecord, names: Collection[str]) -> None:
    missing = [name for name in sorted(names) if name not in arrays]
    odd = missing[:1]
    if not odd and len(arrays) > len(names):
        # A stranger's names are looked at until one is odd, and no further.
        known = set(names)
        odd = [next(name for name in arrays if name not in known)]
    if odd:
        others = 2 * len(missing) + len(arrays) - len(names) - 1
        inner = wrapped_as(odd[0], arrays)
        which = f"inside of its wrapper, .{inner}" if inner else _LOADED
        fix = f"return the state_dict of the model {which}"
        if arrays and _are_places(arrays) and not _are_places(names):
            fix = NAMELESS
        elif arrays and all(name in names for name in arrays):
            fix += _PERSONAL
        raise ReplyError(
            "names",
            f"the reply's arrays differ from those sent in {shown(odd[0])}"
            f"{f' and {others:,} more' if others > 0 else ''}: {fix}",
        )


def _are_places(names: Collection[str]) -> bool:
    """Tell whether these are the names that Flower gives to a list of arrays."""
    return all(name == str(number) for number, name in enumerate(names))
