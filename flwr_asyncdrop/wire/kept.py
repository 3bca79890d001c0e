"""Which units of the full model a task keeps, for clients with layers of their own.

It travels in the task's ``ConfigRecord``, as Flower's mods expect one such record: each
distinct set of positions as a bit mask, and for every narrowed dim the number of its
set.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel.types import Indices
from flwr_asyncdrop.wire.records import config_with, records_of

FROZEN_SHA256 = "asyncdrop-frozen-sha256"
"""Key of the hash of the tensors that a message leaves out."""

_RECORD = "asyncdrop-kept-record"  # the key of the arrays that it speaks of
_DIMS = "asyncdrop-kept-dims"  # tensor, by the order of names; dim; set
_SIZES = "asyncdrop-kept-sizes"  # of each set, and so of the full model's dim
_MASKS = "asyncdrop-kept-masks"  # of all sets, one after the other

Entry = str | bytes | list[int]


@dataclass(frozen=True)
class Kept:
    """Which positions of the full model's tensors a message is about.

    `indices` are the kept positions of the narrowed dims, and `sizes` how long those
    dims are in the full model; a tensor that has no entry is whole.
    """

    indices: Indices = field(default_factory=dict)
    sizes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def kept_entries(
    indices: Indices, shapes: Mapping[str, Sequence[int]], record: str
) -> dict[str, Entry]:
    """Return what goes into the config of a task; nothing for the full model.

    `shapes` are those of the full model's tensors, and `record` is the key of the
    task's arrays.
    """
    if not indices:
        return {}
    numbers = {name: number for number, name in enumerate(sorted(shapes))}
    sets: dict[tuple[int, bytes], int] = {}
    packed: dict[tuple[int, int], bytes] = {}
    entries: list[int] = []
    for name, dim, positions in _narrowed(indices):
        size = shapes[name][dim]
        # A plan has the same positions for many tensors.
        known = (id(positions), size)
        if known not in packed:
            packed[known] = _pack(positions, size)
        number = sets.setdefault((size, packed[known]), len(sets))
        entries += (numbers[name], dim, number)
    return {
        _RECORD: record,
        _DIMS: entries,
        _SIZES: [size for size, _ in sets],
        _MASKS: b"".join(mask for _, mask in sets),
    }


def read_kept(message: Message, absent: Collection[str] = ()) -> Kept:
    """Return, on the client, which units a message is about; all, if it has none.

    `absent` are the tensors of the model that the message has not. ConfigError if it
    lacks some, and they are not named.
    """
    config = config_with(message, _DIMS)
    if config is None:
        return Kept()
    if FROZEN_SHA256 in config and not absent:
        raise ConfigError(
            "the message has only what trains of the model: complete it with the mod "
            "FrozenMod, ClientApp(mods=[FrozenMod()])"
        )
    here = records_of(message.content, ArrayRecord)[str(config[_RECORD])]
    names = sorted({*here, *absent})
    # As the server has written them.
    sizes = cast(list[int], config[_SIZES])
    sets = _unpack(sizes, cast(bytes, config[_MASKS]))
    indices: Indices = {}
    full: dict[str, dict[int, int]] = {}
    triples = iter(cast(list[int], config[_DIMS]))
    for tensor, dim, number in zip(triples, triples, triples, strict=True):
        name, (size, positions) = names[tensor], sets[number]
        indices.setdefault(name, {})[dim] = positions
        full.setdefault(name, {})[dim] = size
    return Kept(indices, full)


def _narrowed(indices: Indices) -> Iterator[tuple[str, int, Tensor]]:
    for name, dims in indices.items():
        for dim, positions in dims.items():
            yield name, dim, positions


def _pack(positions: Tensor, size: int) -> bytes:
    mask = np.zeros(size, dtype=np.bool_)
    mask[positions.numpy()] = True
    return np.packbits(mask).tobytes()


def _unpack(sizes: Sequence[int], masks: bytes) -> list[tuple[int, Tensor]]:
    sets, start = [], 0
    for size in sizes:
        end = start + -(-size // 8)
        bits = np.unpackbits(np.frombuffer(masks[start:end], np.uint8), count=size)
        sets.append((size, torch.from_numpy(bits.nonzero()[0])))
        start = end
    return sets
