"""The one protocol of state: ``state_dict`` and ``load_state_dict``.

`to_plain` makes a state of dataclasses, and `from_plain` makes them again by their
declared types: a field that is added to a dataclass is saved with it. No class is ever
named in what is saved, so loading cannot run anything.
"""

import types
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import (
    Any,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

import numpy as np
from torch import Tensor

from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.readable import one_line

StateDict = dict[str, Any]
"""Nested dicts with string keys, and lists, of tensors, numbers, strings and None."""

_PACKAGE = __name__.partition(".")[0]
_PLAIN = (bool, int, float, str, types.NoneType, Tensor)


@runtime_checkable
class Stateful(Protocol):
    """An object that changes during a run, and can be saved."""

    def state_dict(self) -> StateDict:
        """Return all that changes; no tensor in it is changed in place later."""

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""


@runtime_checkable
class Restorable(Protocol):
    """An object of which it can be told whether its state is all that changes in it."""

    def not_in(self, read: Callable[[], StateDict]) -> str:
        """Return what is not in its state, as a clause without a full stop; or "".

        `read` returns the state as it is read from a checkpoint.
        """


@runtime_checkable
class Incomplete(Protocol):
    """An object whose state may lack something that a run can do without."""

    def left_out(self) -> str:
        """Return, once each, what its last state lacks, as a clause; or ""."""


@runtime_checkable
class Composite(Protocol):
    """An object whose state is made of those of others."""

    def part_at(self, keys: Sequence[str | int]) -> tuple[object, Sequence[str | int]]:
        """Return the object whose state a place is in, and where it is in that one.

        `keys` lead to the place in the whole state.
        """


class Stateless:
    """A base class for what may have state: by default there is none to save."""

    def state_dict(self) -> StateDict:
        """Return all that changes during a run: nothing, by default."""
        return {}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""


class ChangingState(StateDict):
    """A state whose tensors may change in place while it is written."""


def state_to_save(owner: Stateful) -> StateDict:
    """Return the state of an object that may be a user's own.

    A user's `state_dict` may return the tensors that the object works with, as those of
    PyTorch do: its state is a `ChangingState`. CheckpointError if it raises, or returns
    no dict.
    """
    if _is_ours(owner.state_dict):
        return owner.state_dict()
    name = type(owner).__name__
    with _called(f"{name}.state_dict() cannot be called", "correct it"):
        state = owner.state_dict()
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"{name}.state_dict() returned a {type(state).__name__}: return a dict "
            "with strings as keys"
        )
    return ChangingState(state)


def load_saved(owner: Stateful, state: StateDict) -> None:
    """Load the state of an object that may be a user's own.

    CheckpointError, in one line, if a `load_state_dict` of a user's own raises.
    """
    if _is_ours(owner.load_state_dict):
        owner.load_state_dict(state)
        return
    with _called(
        f"{type(owner).__name__} cannot load what its state_dict returned",
        "correct load_state_dict, or start the run again without resume",
    ):
        owner.load_state_dict(state)


@contextmanager
def _called(fault: str, fix: str) -> Iterator[None]:
    """Call code of a user's own: what it raises is one line of a CheckpointError."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # whatever it is
        raise CheckpointError(f"{fault} ({one_line(error)}): {fix}") from error


def _is_ours(method: object) -> bool:
    module = getattr(method, "__module__", None) or ""
    return str(module).partition(".")[0] == _PACKAGE


def to_plain(value: Any) -> Any:
    """Return a value of dataclasses, mappings and sequences as a state.

    Dicts whose keys are no strings become lists of pairs, and sets sorted lists. What
    cannot be saved raises a TypeError.
    """
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, _PLAIN):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_plain(item) for key, item in value.items()}
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, Set):
        value = sorted(value)
    if isinstance(value, Sequence):
        return [to_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} cannot be saved in a checkpoint")


def from_plain(kind: Any, plain: Any) -> Any:
    """Return the value of type `kind` that `to_plain` was given.

    Other values raise a TypeError, ValueError, KeyError or AttributeError.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any or kind in _PLAIN or origin is Literal:
        return plain
    if origin in (Union, types.UnionType):
        (inner,) = (part for part in arguments if part is not types.NoneType)
        return None if plain is None else from_plain(inner, plain)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        if plain.keys() != hints.keys():
            odd = ", ".join(sorted(plain.keys() ^ hints.keys()))
            raise ValueError(f"other fields: {odd}")
        return kind(**{n: from_plain(hint, plain[n]) for n, hint in hints.items()})
    if isinstance(origin, type) and issubclass(origin, Mapping):
        pairs = plain.items() if isinstance(plain, dict) else plain
        keys, items = arguments
        return {from_plain(keys, k): from_plain(items, item) for k, item in pairs}
    if origin is tuple:
        if arguments[-1] is ...:
            return tuple(from_plain(arguments[0], item) for item in plain)
        parts = zip(arguments, plain, strict=True)
        return tuple(from_plain(part, item) for part, item in parts)
    if origin is set:
        return {from_plain(arguments[0], item) for item in plain}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return [from_plain(arguments[0], item) for item in plain]
    raise TypeError(f"{kind} cannot be read from a checkpoint")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """Return the declared types of the fields of a dataclass."""
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}
