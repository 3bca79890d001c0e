"""Tensors within what models take and return: containers, dataclasses, objects."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

_PLAIN = (str, bytes, int, float, complex, bool, type(None))


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors and plain values within `value`, in order.

    It looks into mappings, sequences, dataclasses and other objects' attributes. Not
    into caches, such as the keys and values that a Transformer keeps for the next
    token: a submodel's are narrower, and training does not see them.
    """
    yield from _leaves(value, set())


def tensors_within(value: Any) -> list[Tensor]:
    """Return the tensors within `value`, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(value, (Tensor, *_PLAIN)):
        yield value
        return
    if id(value) in seen or _is_cache(value):
        return
    seen.add(id(value))
    for part in _parts(value):
        yield from _leaves(part, seen)


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    if isinstance(value, type) or callable(value):
        return []
    return list(getattr(value, "__dict__", {}).values())


def _is_cache(value: Any) -> bool:
    """Whether `value` keeps keys and values, by what Hugging Face calls its methods."""
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a copy of `value` with `function` applied to every tensor within."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (*_PLAIN, type)) or callable(value):
        return value
    if isinstance(value, tuple):
        items = [map_tensors(function, item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        return [map_tensors(function, item) for item in value]
    if isinstance(value, dict):
        mapped = copy.copy(value)
        for key, item in value.items():
            mapped[key] = map_tensors(function, item)
        return mapped
    if dataclasses.is_dataclass(value) or hasattr(value, "__dict__"):
        mapped = copy.copy(value)
        for name, item in vars(value).items():
            object.__setattr__(mapped, name, map_tensors(function, item))
        return mapped
    return value
