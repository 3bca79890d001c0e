"""All arrays of a record as one array, for the way between server and devices.

Flower takes a message apart into objects and sends each by itself, both ways: two for
every array. Models have dozens of small ones.
"""

import json
import struct
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict

from flwr_asyncdrop.wire.npy import CODED
from flwr_asyncdrop.wire.records import records_of, unsent_with

PACKED = CODED + "packed"
"""The ``stype`` of an array that holds the others."""

_KEY = "packed"
_LENGTH = struct.Struct("<I")  # bytes of the list that comes next
# Bytes of a list from a stranger, for each array that is due. To read a hostile one
# takes 25 times as much memory.
_LONGEST_ENTRY = 512
_TYPES = (str, str, list, str, int)  # name, dtype, shape, stype, bytes


def packed_message(message: Message) -> Message:
    """Return a message that is not sent yet, with one array in each of its records."""
    content = packed(message.content)
    return message if content is message.content else unsent_with(message, content)


def packed(content: RecordDict) -> RecordDict:
    """Return a content in which no array record has more than one array."""
    records = {
        key: ArrayRecord({_KEY: _pack(record)})
        for key, record in records_of(content, ArrayRecord).items()
        if len(record) > 1
    }
    return RecordDict({**content, **records}) if records else content


def unpacked(content: RecordDict, most: int | None = None) -> RecordDict:
    """Return a content with the arrays that were packed; ValueError if one is broken.

    `most` is as for `unpack`. It is the same object if there are none.
    """
    records = {
        key: unpack(record, most)
        for key, record in records_of(content, ArrayRecord).items()
        if is_packed(record)
    }
    return RecordDict({**content, **records}) if records else content


def is_packed(record: Mapping[str, Array]) -> bool:
    """Return whether the arrays of a record are in one."""
    return len(record) == 1 and _KEY in record and record[_KEY].stype == PACKED


def unpack(record: ArrayRecord, most: int | None = None) -> ArrayRecord:
    """Return the arrays of a packed record, which share nothing with it.

    ValueError if it is broken, or if its list is too long for so many arrays.
    """
    data = record[_KEY].data
    arrays, start = ArrayRecord(), _LENGTH.size
    if len(data) < start:
        raise ValueError(f"it has {len(data)} bytes, too few for a list of arrays")
    (length,) = _LENGTH.unpack_from(data)
    if length > len(data) - start:
        raise ValueError(f"its list of arrays would have {length:,} bytes")
    if most is not None and length > _LONGEST_ENTRY * (most + 1):
        raise ValueError(f"its list has {length:,} bytes for {most} arrays")
    start += length
    for name, dtype, shape, stype, size in _entries(data[_LENGTH.size : start]):
        if name in arrays:
            raise ValueError("its list names an array twice")
        if size > len(data) - start:
            raise ValueError("its list names more bytes than there are")
        arrays[name] = Array(dtype, shape, stype, data[start : start + size])
        start += size
    if start != len(data):
        raise ValueError(f"its list leaves {len(data) - start:,} bytes without a name")
    return arrays


def _pack(record: ArrayRecord) -> Array:
    entries = [
        (name, array.dtype, list(array.shape), array.stype, len(array.data))
        for name, array in record.items()
    ]
    head = json.dumps(entries, separators=(",", ":")).encode()
    parts = [_LENGTH.pack(len(head)), head, *(each.data for each in record.values())]
    data = b"".join(parts)
    return Array("uint8", (len(data),), PACKED, data)


def _entries(head: bytes) -> list[tuple[str, str, tuple[int, ...], str, int]]:
    try:
        entries = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise ValueError("its list of arrays is no JSON") from error
    if not isinstance(entries, list) or not all(map(_is_entry, entries)):
        raise ValueError("its list of arrays has an odd entry")
    return [(n, dtype, tuple(shape), s, size) for n, dtype, shape, s, size in entries]


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, list)
        and tuple(map(type, entry)) == _TYPES
        and all(type(dim) is int and dim >= 0 for dim in (*entry[2], entry[4]))
    )
