"""Frozen tensors beside a task: named by their hash, and brought where they are not.

A task has the tensors that train. Its config says by which hash the others are known,
and a record of its own brings them if need be. A client that has not got them replies
with nothing but that hash.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import Frozen, extract, silenced
from flwr_asyncdrop.submodel.types import NORM_BUFFERS
from flwr_asyncdrop.wire.kept import FROZEN_SHA256 as _HASH
from flwr_asyncdrop.wire.kept import read_kept
from flwr_asyncdrop.wire.npy import from_record, refuse_coded, to_record
from flwr_asyncdrop.wire.records import (
    config_with,
    configs_without,
    records_of,
    unsent_with,
)

_OF = "asyncdrop-frozen-of"  # the key of the record that they complete
_MASKED = "asyncdrop-frozen-masked"  # dropped units are zeroed instead of cut out
# Where they stand among all tensors of the model, in the order of their names.
_PLACES = "asyncdrop-frozen-places"
_KEYS = (_HASH, _OF, _MASKED, _PLACES)

FROZEN_RECORD = "asyncdrop-frozen"
"""Key of the record that brings the frozen tensors."""

_LACKED = "asyncdrop-frozen-lacked"

FrozenEntry = str | bool | list[int]


@dataclass(frozen=True)
class FrozenPart:
    """What a message says of the tensors that it leaves out."""

    sha256: str
    record: str
    masked: bool
    places: Sequence[int]
    brought: ArrayRecord | None


def frozen_entries(
    frozen: Frozen, record: str, *, masked: bool = False
) -> dict[str, FrozenEntry]:
    """Return what goes into the config of a task; nothing if all tensors train.

    `record` is the key of the task's arrays.
    """
    if not frozen.tensors:
        return {}
    place = {name: number for number, name in enumerate(frozen.names)}
    places = [place[name] for name in sorted(frozen.tensors)]
    return {_HASH: frozen.sha256, _OF: record, _MASKED: masked, _PLACES: places}


def left_out(
    arrays: ArrayRecord, frozen: Frozen, sent: ArrayRecord, key: str
) -> tuple[ArrayRecord, dict[str, FrozenEntry]]:
    """Return a whole model without its frozen tensors, and what the config says then.

    `sent` is the record of the frozen tensors, and `key` the one that the arrays have
    in their message. Arrays that are no such model come back whole, and nothing with
    them.
    """
    if not frozen.tensors or list(arrays) != list(frozen.names):
        return arrays, {}
    if not all(_is_same(arrays[name], array) for name, array in sent.items()):
        return arrays, {}
    left = {name: array for name, array in arrays.items() if name not in sent}
    return _record_of(left), frozen_entries(frozen, key)


def bring(message: Message, frozen: ArrayRecord) -> Message:
    """Return a new message like one that left the frozen tensors out, with them."""
    content = RecordDict({**message.content, FROZEN_RECORD: frozen})
    return unsent_with(message, content)


def read_frozen(message: Message) -> FrozenPart | None:
    """Return, on the client, what a message leaves out; None if it is complete."""
    config = config_with(message, _HASH)
    if config is None:
        return None
    return FrozenPart(
        str(config[_HASH]),
        str(config[_OF]),
        config[_MASKED] is True,
        cast(list[int], config[_PLACES]),  # as the server has written it
        records_of(message.content, ArrayRecord).get(FROZEN_RECORD),
    )


def without_brought(content: RecordDict) -> RecordDict:
    """Return the content of a message without what brings the frozen tensors."""
    if FROZEN_RECORD not in content:
        return content
    return RecordDict({k: value for k, value in content.items() if k != FROZEN_RECORD})


def completed(
    message: Message, part: FrozenPart, frozen: ArrayRecord
) -> tuple[RecordDict, Mapping[str, Array]]:
    """Return the content of a message with the frozen tensors in it, and those.

    They are cut, or zeroed, as the message's other arrays are. ConfigError if those are
    coded.
    """
    content = message.content
    arrays = records_of(content, ArrayRecord)[part.record]
    refuse_coded(arrays)
    cut: Mapping[str, Array] = frozen
    kept = read_kept(message, frozen)
    indices = {name: dims for name, dims in kept.indices.items() if name in frozen}
    if indices:
        narrowed = ArrayRecord({name: frozen[name] for name in indices})
        take = silenced if part.masked else extract
        cut = {**frozen, **to_record(take(from_record(narrowed), indices))}
    whole = _record_of(_in_place(arrays, cut, part.places))
    configs = configs_without(content, _KEYS)
    return RecordDict({**content, part.record: whole, **configs}), cut


def without_frozen(content: RecordDict, frozen: Mapping[str, Array]) -> RecordDict:
    """Return a reply's content without the frozen tensors that its task had.

    ConfigError if one of them has changed: it would be lost.
    """
    records: dict[str, ArrayRecord] = {}
    for key, arrays in records_of(content, ArrayRecord).items():
        left: dict[str, Array] = {}
        for name, array in arrays.items():
            if name in frozen:
                _check_same(name, array, frozen[name])
            else:
                left[name] = array
        records[key] = _record_of(left)
    return RecordDict({**content, **records})


def ask_for_frozen(message: Message, sha256: str) -> Message:
    """Return, on the client, the reply to a task whose frozen tensors it has not."""
    asked = RecordDict({_LACKED: ConfigRecord({_HASH: sha256})})
    return Message(asked, reply_to=message)


def lacks_frozen(reply: Message, sha256: str) -> bool:
    """Tell, on the server, whether a reply says that it lacks the frozen tensors."""
    if not sha256 or not asks_for_frozen(reply):
        return False
    return records_of(reply.content, ConfigRecord)[_LACKED].get(_HASH) == sha256


def asks_for_frozen(reply: Message) -> bool:
    """Tell whether a reply does nothing but ask for frozen tensors, of any hash."""
    return not reply.has_error() and _LACKED in records_of(reply.content, ConfigRecord)


def _in_place(
    arrays: Mapping[str, Array], frozen: Mapping[str, Array], places: Sequence[int]
) -> dict[str, Array]:
    """Return all arrays in the model's order: some clients go by it, not by names."""
    at = dict(zip(places, sorted(frozen), strict=True))
    others = iter(arrays.items())
    whole: dict[str, Array] = {}
    for place in range(len(arrays) + len(frozen)):
        if place in at:
            whole[at[place]] = frozen[at[place]]
        else:
            name, array = next(others)
            whole[name] = array
    return whole


def _is_same(one: Array, other: Array) -> bool:
    # The bytes have dtype and shape in front.
    return one is other or (one.stype == other.stype and one.data == other.data)


def _check_same(name: str, found: Array, sent: Array) -> None:
    if _is_same(found, sent):
        return
    arrays = from_record(_record_of({"found": found, "sent": sent}))
    mine, before = arrays["found"], arrays["sent"]
    # A client may compute in less precision, and send that in more.
    if any(
        _is_equal(mine, before.to(kind).to(mine.dtype)) for kind in _kinds_of(before)
    ):
        return
    fix = (
        "set requires_grad_(False) on it in the client, or name it in the strategy's "
        "trainable=[...]"
    )
    if name.rpartition(".")[2] in NORM_BUFFERS:
        fix = (
            "train with its layer in eval mode, or let the strategy's trainable=... be "
            "true for its name"
        )
    raise ConfigError(
        f"the client has changed {name!r}, which does not train and is not sent back: "
        f"{fix}; a mod that adds noise, as Flower's LocalDpMod, goes into "
        "FrozenMod(train_mods=[...])"
    )


def _kinds_of(sent: Tensor) -> tuple[torch.dtype, ...]:
    if sent.is_floating_point():
        return sent.dtype, torch.float32, torch.bfloat16, torch.float16
    return (sent.dtype,)


def _is_equal(mine: Tensor, before: Tensor) -> bool:
    """Whether tensors are the same; NaN is no change of NaN."""
    if mine.shape != before.shape:
        return False
    return bool(((mine == before) | ((mine != mine) & (before != before))).all())


def _record_of(arrays: Mapping[str, Array]) -> ArrayRecord:
    record = ArrayRecord()
    for name, array in arrays.items():
        record[name] = array
    return record
