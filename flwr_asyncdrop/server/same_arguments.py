"""The arguments of a run as its checkpoints have them, and whether they are the same.

What they are compared with may be another process's: a function is known by its name,
and an object by its class and attributes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from functools import partial
from typing import Any

from torch import Tensor

from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.parameters import plain
from flwr_asyncdrop.state_dict import StateDict

_PACKAGE = __name__.partition(".")[0]
_CLASS = "class"
_VALUE = "value"


def described(argument: object) -> Any:
    """Return an argument as a state; what it is made of can be compared.

    Attributes that are objects are compared by their class alone, unless they are
    dataclasses, enums, sets or this package's; so is an object that holds itself.
    """
    try:
        found = _simple(argument)
        return _object(argument) if found is NotImplemented else found
    except RecursionError:
        return type(argument).__qualname__


def check_same(were: StateDict, are: StateDict) -> None:
    """Raise CheckpointError for arguments that are not what they were.

    Those that `were` lacks are not compared: a version before this one saved it.
    """
    differences = [
        difference
        for name, was in were.items()
        for difference in _differences(name, was, are.get(name))
    ]
    if differences:
        raise CheckpointError(
            f"the run that is to be resumed had other arguments "
            f"({'; '.join(differences)}): resume with the same, or start it again"
        )


def _simple(value: object) -> Any:
    """Return what is no object of a class of its own; else NotImplemented."""
    value = plain(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return {_CLASS: type(value).__qualname__, _VALUE: value.name}
    if isinstance(value, set | frozenset):
        parts = sorted(str(_part(item)) for item in value)
        return {_CLASS: type(value).__qualname__, _VALUE: parts}
    if isinstance(value, Mapping):
        if any(map(_has_no_name, value)):
            return [[_part(key), _part(item)] for key, item in value.items()]
        return {str(key): _part(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_part(item) for item in value]
    if isinstance(value, partial):
        given = {str(place): item for place, item in enumerate(value.args)}
        named = {name: _part(item) for name, item in (given | value.keywords).items()}
        return {"function": _part(value.func), **named}
    name = getattr(value, "__qualname__", None)
    return NotImplemented if name is None else str(name)


def _has_no_name(key: object) -> bool:
    """Return whether the text of a key is an address, or is that of numbers."""
    return isinstance(key, Tensor) or " at 0x" in str(key)


def _part(value: object) -> Any:
    found = _simple(value)
    if found is not NotImplemented:
        return found
    kind = type(value)
    if is_dataclass(value) or kind.__module__.partition(".")[0] == _PACKAGE:
        return _object(value)
    return kind.__qualname__


def _object(value: object) -> Any:
    kind = type(value).__qualname__
    attributes = {
        name.lstrip("_"): _part(item)
        for name, item in getattr(value, "__dict__", {}).items()
    }
    return {_CLASS: kind, **attributes} if attributes else kind


def _differences(name: str, was: Any, now: Any) -> Iterator[str]:
    both = isinstance(was, dict) and isinstance(now, dict)
    if both and was.get(_CLASS) == now.get(_CLASS):
        # A later version of a class may have more attributes.
        for key in was if _CLASS in was else {**was, **now}:
            yield from _differences(f"{name}.{key}", was.get(key), now.get(key))
    elif isinstance(now, dict) and _VALUE in now and was == now.get(_CLASS):
        return  # a version before this one knew the class alone
    elif was != now and repr(was) != repr(now):  # NaN is equal to itself
        yield f"{name} {_text(was)}, now {_text(now)}"


def _text(value: Any) -> str:
    return repr(value.get(_CLASS, value) if isinstance(value, dict) else value)
