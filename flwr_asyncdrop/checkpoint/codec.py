"""A state as JSON and a table of tensors.

A tensor becomes ``{"$": name}``, with its name in the table. A dict that has a key
``"$"`` of its own becomes ``{"$": dict}``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.state_dict import ChangingState

Json = Any
"""None, truths, numbers, strings, lists, and dicts with string keys."""

_MARK = "$"
_DEEPEST = 200  # dicts and lists inside of each other: JSON has not many more
_MOST_KEYS = 4


class NoStateError(TypeError):
    """What is no state: `keys` lead to it, and `says` tells what is wrong with it."""

    def __init__(self, keys: Sequence[str | int], says: str) -> None:
        super().__init__(f"{_path(keys)}{says}")
        self.keys = keys
        self.says = says


def pack(state: Any) -> tuple[Json, dict[str, Tensor]]:
    """Return a state as JSON, and its tensors by name, each once.

    Those of a `ChangingState` are copied, as they will be read: to the CPU. What is no
    state raises a NoStateError.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}
    changing: set[str] = set()  # the names of those that may change
    around: set[int] = set()  # the dicts and lists that a value is in

    def packed(value: Any, keys: tuple[str | int, ...], changes: bool) -> Json:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, Tensor):
            if odd := _oddity(value):
                raise NoStateError(
                    keys,
                    f": a tensor {odd} cannot be saved in a checkpoint; dense ones can",
                )
            if id(value) not in names:
                path = _path(keys)
                while path in tensors:  # keys may have slashes too
                    path += "'"
                names[id(value)] = path
                tensors[path] = value
            if changes:
                changing.add(names[id(value)])
            return {_MARK: names[id(value)]}
        if id(value) in around:
            raise NoStateError(
                keys,
                f" is the {type(value).__name__} that it is in: a state that contains "
                "itself cannot be saved in a checkpoint",
            )
        if len(keys) > _DEEPEST:
            raise NoStateError(
                keys[:_MOST_KEYS],
                f" has more than {_DEEPEST} dicts and lists inside of each other, and "
                "cannot be saved in a checkpoint",
            )
        around.add(id(value))
        try:
            return packed_items(
                value, keys, changes or isinstance(value, ChangingState)
            )
        finally:
            around.remove(id(value))

    def packed_items(value: Any, keys: tuple[str | int, ...], changes: bool) -> Json:
        if isinstance(value, Mapping):
            if odd := [key for key in value if not isinstance(key, str)]:
                raise NoStateError(
                    keys, f" has the key {odd[0]!r}, which is not a string"
                )
            items = {
                key: packed(item, (*keys, key), changes) for key, item in value.items()
            }
            return {_MARK: items} if _MARK in items else items
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [packed(item, (*keys, at), changes) for at, item in enumerate(value)]
        raise NoStateError(
            keys,
            f": {printable(shown(value))} cannot be saved in a checkpoint; tensors, "
            "numbers, strings, None, lists and dicts can",
        )

    found = packed(state, (), False)
    for name in changing:
        tensors[name] = tensors[name].detach().to("cpu", copy=True)
    return found, tensors


def _oddity(tensor: Tensor) -> str:
    """Return what keeps a tensor out of a checkpoint, "" if nothing does."""
    if tensor.is_meta:
        return "on the device meta"
    if tensor.is_nested:
        return "that is nested"
    if tensor.is_quantized:
        return "that is quantized"
    return "" if tensor.layout is torch.strided else f"of {tensor.layout}"


def _path(keys: Sequence[str | int]) -> str:
    return "/".join(map(str, keys))


def unpack(json: Json, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that `pack` was given; what was one tensor is one again."""
    if isinstance(json, list):
        return [unpack(item, tensors) for item in json]
    if not isinstance(json, dict):
        return json
    marked = json.get(_MARK)
    if isinstance(marked, str):
        return tensors[marked]
    items = json if marked is None else marked
    return {key: unpack(item, tensors) for key, item in items.items()}


def as_json(key: str, value: Json) -> Json:
    """Return a setting as it will be read again; ConfigError if JSON has no such."""
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"the setting {key!r} cannot be saved in a checkpoint ({error}): give a "
            "number, a text, a list or a dict"
        ) from error
