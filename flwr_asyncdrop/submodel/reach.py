"""Where the code of a model may keep something outside of the model."""

import functools
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

PLAIN = (str, bytes, int, float, complex, bool, type(None))
LRU = type(functools.lru_cache(len))
ABSENT = object()

_FOREIGN = sys.stdlib_module_names | {"numpy", "torch"}  # keep nothing of a model's
_MOST = 10_000  # entries of a container: a larger one is data
# What torch or Python calls by name.
_CALLED = ("forward", "backward", "setup_context", "__call__", "__getattr__")


def places_of(model: nn.Module) -> list[Any]:
    """Return the dicts, lists, classes, cells and cached functions that code reaches.

    It starts from the forward passes of the modules of `model` and goes by the names
    that code has, each place once. Of a class, a method counts if some code names one
    like it. A dict may have the names of a whole file.
    """
    return _Reach(model).places


def content(cell: CellType) -> Any:
    """Return what a cell of a closure holds, or `ABSENT`."""
    try:
        return cell.cell_contents
    except ValueError:
        return ABSENT


class _Reach:
    def __init__(self, model: nn.Module) -> None:
        self.places: list[Any] = []
        self._seen: dict[int, Any] = {}  # by ids, which stay theirs meanwhile
        self._names = set(_CALLED)
        self._unread: defaultdict[str, list[Any]] = defaultdict(list)  # methods by name
        self._waiting: list[Any] = [model]
        while self._waiting:
            self._visit(self._waiting.pop())

    def _is_new(self, value: Any) -> bool:
        known = isinstance(value, PLAIN) or id(value) in self._seen
        if not known:
            self._seen[id(value)] = value
        return not known

    def _visit(self, value: Any) -> None:
        if not self._is_new(value):
            return
        if isinstance(value, dict | list | type | CellType | LRU):
            self.places.append(value)
        if isinstance(value, FunctionType):
            self._visit_function(value)
        elif isinstance(value, type):
            self._visit_class(value)
        else:
            self._waiting += _within(value)

    def _visit_class(self, kind: type) -> None:
        if _is_foreign(kind.__module__):
            return
        self._waiting += kind.__bases__
        for name, member in vars(kind).items():
            if name in self._names or not callable(getattr(member, "__get__", None)):
                self._waiting.append(member)
            else:
                self._unread[name].append(member)

    def _visit_function(self, function: FunctionType) -> None:
        own = (function.__closure__, function.__defaults__, function.__kwdefaults__)
        self._waiting += (*own, vars(function))
        if _is_foreign(function.__module__):
            return
        names = set(names_in(function.__code__))
        for name in names - self._names:
            self._waiting += self._unread.pop(name, ())
        self._names |= names
        here = function.__globals__
        known = [here[name] for name in names & here.keys()]
        files = [vars(file) for file in known if isinstance(file, ModuleType)]
        for file in [here, *files]:
            if _is_foreign(file.get("__name__")):
                continue
            self._waiting += (file[name] for name in names & file.keys())
            if self._is_new(file):
                self.places.append(file)


def _within(value: Any) -> Iterable[Any]:
    """Return what an object that is no class and no plain function consists of."""
    if isinstance(value, dict):  # of a lazy one, what it has
        return dict.values(value) if len(value) <= _MOST else ()
    if isinstance(value, list | tuple | set | frozenset):
        return value if len(value) <= _MOST else ()
    if isinstance(value, CellType):
        return [content(value)]
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, staticmethod | classmethod | LRU):
        return [value.__wrapped__]
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, functools.cached_property):
        return [value.func]
    if isinstance(value, ModuleType):
        return ()
    if _is_foreign(type(value).__module__) and not isinstance(value, nn.Module):
        return ()
    return type(value), getattr(value, "__dict__", {})


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names of globals and attributes that code has, and functions in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def _is_foreign(module: str | None) -> bool:
    return module is None or module.partition(".")[0] in _FOREIGN
