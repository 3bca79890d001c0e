"""Reading a client's reply, and checking that it can be merged."""

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, RecordDict

from flwr_asyncdrop.exceptions import ReplyError
from flwr_asyncdrop.submodel.types import State
from flwr_asyncdrop.wire.advice import advice
from flwr_asyncdrop.wire.arrays import read_sound_array
from flwr_asyncdrop.wire.devices import DeviceReport, read_report
from flwr_asyncdrop.wire.npy import array_bytes
from flwr_asyncdrop.wire.tasks import RecordKeys

MAX_EXAMPLES = 1_000_000_000
"""Examples that one task can claim unless the user says otherwise."""

_LONGEST_REASON = 1000
_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Expected:
    """What a reply to a task must be like."""

    shapes: Mapping[str, tuple[int, ...]]  # of every array that was sent
    dtypes: Mapping[str, torch.dtype]  # of the model's tensors
    keys: RecordKeys = field(default_factory=RecordKeys)
    max_examples: int = MAX_EXAMPLES
    # The names of the tensors in each record that was sent beside the model.
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)


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
    metrics, num_examples = _read_metrics(
        content, expected.keys.num_examples, expected.max_examples
    )
    arrays, *extra = (
        {
            name: read_sound_array(
                name, record[name], expected.shapes[name], expected.dtypes[name]
            )
            for name in names
        }
        for record, names in zip(
            records, (expected.shapes, *expected.extra.values()), strict=True
        )
    )
    return Reply(
        arrays=arrays,
        num_examples=num_examples,
        metrics=metrics,
        num_bytes=sum(map(array_bytes, records)),
        report=read_report(message),
        extra=dict(zip(expected.extra, extra, strict=True)),
    )


def read_evaluation(
    message: Message, keys: RecordKeys, max_examples: int = MAX_EXAMPLES
) -> RecordDict:
    """Read what a client measured, for Flower's aggregation functions.

    ReplyError if it raised, or does not say on how many examples it measured.
    """
    metrics, _ = _read_metrics(_content(message), keys.num_examples, max_examples)
    return metrics


def flat_metrics(content: RecordDict) -> dict[str, float | int]:
    """Return the scalar metrics of all metric records, later records winning."""
    return {
        key: value
        for record in content.metric_records.values()
        for key, value in record.items()
        if isinstance(value, float | int)
    }


def _content(message: Message) -> RecordDict:
    if message.has_error():
        reason = textwrap.shorten(message.error.reason or "", _LONGEST_REASON)
        fix = advice(reason)
        raise ReplyError(
            "client-error",
            f"the client failed with code {message.error.code}: "
            f"{reason or 'no reason given'}{f'; {fix}' if fix else ''}",
        )
    return message.content


def _array_records(content: RecordDict, expected: Expected) -> list[ArrayRecord]:
    """Return the model's record, and then those beside it, in the order sent."""
    records = dict(content.array_records)
    extra = {name: records.pop(name, None) for name in expected.extra}
    if len(records) != 1:
        raise ReplyError(
            "records",
            f"the reply carries {len(records)} ArrayRecords: return exactly one, with "
            "the trained state_dict",
        )
    (arrays,) = records.values()
    _check_names(arrays, expected.shapes)
    found = [arrays]
    for name, record in extra.items():
        if record is None:
            raise ReplyError(
                "records",
                f"the reply lacks the record {name!r} that came with the task: return "
                "what the algorithm's local objective gives",
            )
        _check_names(record, expected.extra[name])
        found.append(record)
    return found


def _check_names(arrays: ArrayRecord, names: Collection[str]) -> None:
    if arrays.keys() != set(names):
        odd = sorted(arrays.keys() ^ set(names))
        raise ReplyError(
            "names",
            f"the reply's arrays differ from those sent in {_short(odd[0])}"
            f"{f' and {len(odd) - 1} more' if len(odd) > 1 else ''}: return the "
            "state_dict of the model that was loaded from the message",
        )


def _read_metrics(
    content: RecordDict, key: str, max_examples: int
) -> tuple[RecordDict, int]:
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
    if (
        not isinstance(value, int | float)
        or not 1 <= value <= max_examples
        or value % 1  # a share of one would be rounded off
    ):
        raise ReplyError(
            "num-examples",
            f"{key!r} is {_short(value)}: it must be a whole number of examples from 1 "
            f"to {max_examples:,}; raise max-examples if there can be more",
        )
    return RecordDict({found: records[found], **records}), int(value)


def _short(value: object) -> str:
    """Return a client's value, short enough for a message."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
