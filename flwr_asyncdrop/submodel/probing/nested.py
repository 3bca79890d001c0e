"""Tensors within what models take and return: containers, dataclasses, objects."""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, ValuesView
from types import FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from flwr_asyncdrop.submodel.probing.drawn import Drawn

_PLAIN = (str, bytes, int, float, complex, bool, type(None))
_LEAVES = (Tensor, *_PLAIN)
_NO_ATTRIBUTES = ("__dict__", "__weakref__")


def leaves(value: Any) -> Iterator[Any]:
    """Yield the tensors and plain values within `value`, in order.

    It looks into mappings, sequences, dataclasses and other objects' attributes, which
    may be slots. Not into modules, functions and numbers that are followed, nor into
    caches, such as the keys and values that a Transformer keeps for the next token: a
    submodel's are narrower, and training does not see them.
    """
    return (part for part in parts(value) if isinstance(part, _LEAVES))


def parts(value: Any) -> Iterator[Any]:
    """Yield `value` and all within it, as `leaves` looks into it."""
    seen: dict[int, Any] = {}  # objects by their ids, which stay theirs meanwhile
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, _LEAVES) and not isinstance(value, Drawn):
            yield value
        elif id(value) not in seen and not _is_cache(value):
            seen[id(value)] = value
            yield value
            left.extend(reversed(_parts(value)))


def tensors_within(value: Any) -> list[Tensor]:
    """Return the tensors within `value`, in order."""
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor)]


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset, deque, ValuesView)):
        return list(value)
    if isinstance(value, (type, nn.Module, FunctionType, MethodType, Drawn)):
        return []
    return list(_attributes(value).values())


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that an object has of its own, by name."""
    slots = [kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__]
    names = [n for s in slots for n in ([s] if isinstance(s, str) else s)]
    found = {
        name: getattr(value, name)
        for name in names
        if name not in _NO_ATTRIBUTES and hasattr(value, name)
    }
    return found | getattr(value, "__dict__", {})


def _is_cache(value: Any) -> bool:
    """Whether `value` keeps keys and values, by what Hugging Face calls its methods."""
    return hasattr(value, "get_seq_length") and hasattr(value, "update")


def map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return a copy of `value` with `function` applied to every tensor within.

    Containers and objects may name each other, as nodes name their parents.
    """
    return _mapped(function, value, {})


def _mapped(
    function: Callable[[Tensor], Tensor],
    value: Any,
    done: dict[int, tuple[Any, Any]],
) -> Any:
    """Map tensors; `done` has containers and their copies, by ids of the former."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (*_PLAIN, type)) or callable(value):
        return value
    if id(value) in done:
        return done[id(value)][1]
    if isinstance(value, tuple):
        items = [_mapped(function, item, done) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if isinstance(value, list):
        listed: list[Any] = []
        done[id(value)] = value, listed
        listed.extend(_mapped(function, item, done) for item in value)
        return listed
    attributes = _attributes(value)
    if not (isinstance(value, dict) or attributes or hasattr(value, "__dict__")):
        return value
    mapped = copy.copy(value)
    done[id(value)] = value, mapped
    if isinstance(value, dict):
        for key, item in value.items():
            mapped[key] = _mapped(function, item, done)
        return mapped
    for name, item in attributes.items():
        object.__setattr__(mapped, name, _mapped(function, item, done))
    return mapped
