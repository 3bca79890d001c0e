"""What an object is made of, as far as it can change."""

import hashlib
import io
import logging
import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from enum import Enum
from functools import cache, cached_property, partial
from itertools import count
from pathlib import PurePath
from random import Random
from threading import Thread
from types import CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from flwr.serverapp.strategy import Strategy
from torch import Tensor
from torch.optim import Optimizer

from flwr_asyncdrop.overrides import (
    is_in_its_module,
    named_by_package,
    stored_by_package,
)

LEAVES = (
    *(bool, int, float, complex, str, bytes, type(None), Enum, CodeType, PurePath),
    *(re.Pattern, np.generic, torch.dtype, torch.device),
)
"""What cannot change, and is compared as it is."""

ARRAYS = (Tensor, np.ndarray)
LISTS = (list, tuple, deque)

_NUMBERS = frozenset({bool, int, float, str, type(None)})
_AS_PYTHON = (np.bool_, np.int64, np.float64, np.complex128, np.str_)
_BARE = frozenset({list, tuple, dict, set, frozenset})

# What they hold is of the process, and of no run.
_OPAQUE = (ModuleType, type, logging.Logger, Thread, io.IOBase)
_KNOWN = frozenset(
    {__name__.partition(".")[0], "flwr", "numpy", "torch", *sys.stdlib_module_names}
)
# They make classes of others, which then say one of these modules.
_MAKERS = frozenset({"abc", "dataclasses", "types"})
_NOTHING: Mapping[str, Any] = {}


def is_own(value: object) -> bool:
    """Return whether a function, or the class of an object, is a user's own."""
    return _is_foreign(value if isinstance(value, FunctionType) else type(value))


def has_own(value: object) -> bool:
    """Return whether an object is a user's own, or is made of such."""
    seen: dict[int, object] = {}

    def search(value: object) -> bool:
        if isinstance(value, (*LEAVES, *ARRAYS, *_OPAQUE)) or id(value) in seen:
            return False
        seen[id(value)] = value
        return is_own(value) or any(map(search, _parts(value)))

    return search(value)


def attributes(value: object) -> Mapping[str, Any]:
    """Return what an object is made of beside its items, by name.

    Of a function it is what it has of its surroundings. What cannot be looked into has
    nothing.
    """
    if type(value) in _BARE or isinstance(value, (*LEAVES, *ARRAYS, *_OPAQUE)):
        return _NOTHING
    if isinstance(value, FunctionType):
        return _of_function(value)
    if isinstance(value, MethodType):
        return {"self": value.__self__, "function": value.__func__}
    if isinstance(value, partial):
        return {"func": value.func, "args": value.args, "keywords": value.keywords}
    if isinstance(value, GeneratorType):
        frame = value.gi_frame
        return {} if frame is None else {**frame.f_locals, "place": frame.f_lasti}
    if (drawn := _of_random(value)) is not None:
        return {"state": drawn}
    if isinstance(value, Optimizer) and not is_own(value):
        # The rest are its hooks, and what it has warned of.
        return {"param_groups": value.param_groups, "state": value.state}
    if isinstance(value, deque):
        return {"maxlen": value.maxlen, **getattr(value, "__dict__", {})}
    found = {**_of_slots(value), **getattr(value, "__dict__", {})}
    if isinstance(value, defaultdict):
        found["default_factory"] = value.default_factory
    if isinstance(value, Strategy):
        # What it was given is looked at by itself, and its runs are none of its state.
        ours = named_by_package(type(value)) | stored_by_package(type(value))
        found = {name: part for name, part in found.items() if name not in ours}
    if found or isinstance(value, (*LISTS, Mapping, Set)):
        return found
    return _of_reduction(value)


def is_same_number(one: object, other: object) -> bool:
    """Return whether both are the same number or text: there may be very many."""
    return type(one) is type(other) and type(one) in _NUMBERS and one == other


def precision_of(value: object) -> str:
    """Return the type in which a number of NumPy counts; "" for that of Python's.

    A ``float32`` comes back as a float, and what is computed from it is another number.
    """
    if not isinstance(value, np.generic) or isinstance(value, _AS_PYTHON):
        return ""
    return str(value.dtype)


def makes_missing(value: object) -> bool:
    """Return whether a mapping has a value for any key, as a `defaultdict` has."""
    return hasattr(type(value), "__missing__")


def is_cached(value: object, name: str) -> bool:
    """Return whether an attribute is made by a `cached_property`."""
    return isinstance(getattr(type(value), name, None), cached_property)


def of_classes(value: object) -> Iterator[tuple[type, str, Any]]:
    """Yield what the own classes of an object hold: class, name and value."""
    of: Any = type(value)
    for kind in _own_classes(of):
        for name, held in vars(kind).items():
            if not (name.startswith(("__", "_abc_")) or hasattr(type(held), "__get__")):
                yield kind, name, held


def same_array(one: Any, other: Any) -> bool:
    """Return whether two arrays, or two tensors on a device, have the same bytes."""
    if isinstance(one, Tensor) != isinstance(other, Tensor):
        return False
    if isinstance(one, Tensor) and one.device != other.device:
        return False
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return torch.equal(_bytes_of(one), _bytes_of(other))


def digest_of(array: Any) -> str:
    """Return the SHA-256 of the bytes of an array or a tensor."""
    content: Any = _bytes_of(array).numpy()
    return hashlib.sha256(content).hexdigest()


def _bytes_of(array: Any) -> Tensor:
    if isinstance(array, np.ndarray):
        # Of objects the bytes are addresses.
        array = np.array(repr(array.tolist())) if array.dtype.hasobject else array
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return torch.from_numpy(flat if flat.flags.writeable else flat.copy())
    if array.is_quantized:  # PyTorch would end the process
        raise TypeError("quantized tensors cannot be compared")
    whole: Tensor = array.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return whole.reshape(-1).view(torch.uint8)


@cache
def _own_classes(kind: type) -> tuple[type, ...]:
    return tuple(filter(_is_foreign, kind.__mro__))


def _is_foreign(kind: Any) -> bool:
    module = getattr(kind, "__module__", None) or "builtins"
    if module in _MAKERS and isinstance(kind, type):
        return not is_in_its_module(kind)
    return str(module).partition(".")[0] not in _KNOWN


def _parts(value: object) -> Iterable[object]:
    yield from attributes(value).values()
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, (*LISTS, Set)):
        yield from value


def _of_function(function: FunctionType) -> Mapping[str, Any]:
    held: dict[str, Any] = {"code": function.__code__, **function.__dict__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    for name, cell in cells:
        try:
            held[name] = cell.cell_contents
        except ValueError:  # it is empty
            continue
    defaults = (function.__defaults__, function.__kwdefaults__)
    return {**held, "defaults": defaults}


def _of_random(value: object) -> Any:
    """Return the state of a generator of random numbers; None for other objects."""
    if isinstance(value, Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return value.bit_generator.state
    if isinstance(value, np.random.RandomState):
        return value.get_state()
    return value.get_state() if isinstance(value, torch.Generator) else None


def _of_slots(value: object) -> dict[str, Any]:
    kind: Any = type(value)
    return {n: getattr(value, n) for n in _slots(kind) if hasattr(value, n)}


@cache
def _slots(kind: type) -> tuple[str, ...]:
    """Return the attributes that the classes of an object declare, as they are kept."""
    found = []
    for owner in kind.__mro__:
        slots = vars(owner).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{owner.__name__.lstrip('_')}{name}" if private else name)
    return tuple(name for name in found if name not in ("__dict__", "__weakref__"))


def _of_reduction(value: object) -> Mapping[str, Any]:
    """Return what an object of another language is made from again, if it says so.

    An iterator that does not is like no other: nobody knows how far it is.
    """
    if isinstance(value, count):  # from Python 3.14 on it has no reduction
        return {"next": repr(value)}
    if _has_reduction(type(value)):
        try:
            reduced = value.__reduce_ex__(4)
        except Exception:  # whatever its own code raises
            reduced = None
        if isinstance(reduced, str):  # the name of something global
            return {"name": reduced}
        if isinstance(reduced, tuple):
            items = [tuple(each) for each in reduced[3:5] if each is not None]
            return {"content": (*reduced[1:3], *items)}
    return {"place": uuid4().hex} if isinstance(value, Iterator) else _NOTHING


def _has_reduction(kind: Any) -> bool:
    own = kind.__reduce__ is not object.__reduce__
    return own or kind.__reduce_ex__ is not object.__reduce_ex__
