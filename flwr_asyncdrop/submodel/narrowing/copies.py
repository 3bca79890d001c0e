"""A copy of a module, whose functions are about the copy, too.

`copy.deepcopy` copies modules, tensors and bound methods, and hands on functions as
they are. A hook, or a lambda in an attribute, that names the model would so work on the
model that was copied.
"""

import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.readable import first_line

_PLAIN = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)


def copy_module(model: nn.Module, tensors: Mapping[int, Any]) -> nn.Module:
    """Return a copy of `model` with these tensors, by the ``id()`` of its own.

    Other tensors are copied without their history: Python could not copy them with it.
    Functions that name the model, or a part of it, are copied where it keeps them: as
    hooks, of tensors too, in attributes and in containers. A tensor's own attributes
    are those of its copy, too: an optimizer's groups, or a pass, may go by them.
    """
    seen: set[int] = set()
    parts = list(_walk(model, seen))
    memo: dict[int, Any] = {
        id(part): part.detach().clone()
        for part in parts
        if isinstance(part, Tensor) and not _is_copyable(part)
    }
    memo |= tensors
    functions = _Functions(parts, memo, seen)
    copied: nn.Module = functions.put(copy.deepcopy(model, memo))
    functions.fill()
    _check_copied(model, copied, tensors)
    for part in parts:
        if not isinstance(part, Tensor):
            continue
        mine = memo.get(id(part), part)
        if mine is part:
            continue
        for name, value in vars(part).items():
            # Python copies those of tensors that are no parameters, or in `tensors`.
            own = vars(mine)
            if name not in own:
                own[name] = copy.deepcopy(value, memo)
            own[name] = functions.put(own[name])
        if isinstance(part, nn.Parameter) and mine.requires_grad:
            for hook in _early_hooks(part):
                mine.register_hook(functions.copy(hook))
            for hook in _late_hooks(part):
                mine.register_post_accumulate_grad_hook(functions.copy(hook))
    return copied


@contextmanager
def copying(model: nn.Module) -> Iterator[None]:
    """Raise UnsupportedModelError, in one line, if `model` cannot be copied in here."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(model).__name__} cannot be copied ({first_line(error)}): keep "
            "no tensors with a gradient history, files or locks in its attributes, and "
            "wrap it in FSDP afterwards"
        ) from error


def _check_copied(
    model: nn.Module, copied: nn.Module, tensors: Mapping[int, Any]
) -> None:
    """Raise UnsupportedModelError if `copied` is no copy of `model` with `tensors`."""
    kind, known = type(model).__name__, _tensors_in(model)
    own = {id(part) for part in (*model.modules(), *known.values())}
    own -= set(map(id, tensors.values()))
    found = _tensors_in(copied)
    for name, part in [*copied.named_modules(), *found.items()]:
        if id(part) in own:
            shared = f"{name} with it" if name else "all of it"
            raise UnsupportedModelError(
                f"{kind} cannot be copied: copies share {shared}, as a __deepcopy__ "
                "that returns self makes them; let it be copied"
            )
    for name, tensor in known.items():
        if id(tensor) in tensors and found.get(name) is not tensors[id(tensor)]:
            raise UnsupportedModelError(
                f"{kind} cannot be copied: a __deepcopy__ makes {name} anew; let it "
                "copy.deepcopy(value, memo) what there is"
            )


def _tensors_in(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by all their names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


class _Functions:
    """Copies of the functions that name a model, to be put into a copy of it.

    Parameters
    ----------
    parts : sequence
        The modules, tensors and functions of the model.
    memo : dict
        That of the copy.
    shared : set of int
        The ``id()`` of all that the model consists of: not to be changed.
    """

    def __init__(
        self, parts: Iterable[Any], memo: dict[int, Any], shared: set[int]
    ) -> None:
        self._memo, self._done = memo, shared
        self._own = {id(part) for part in parts if not isinstance(part, FunctionType)}
        self._cells: dict[int, tuple[CellType, CellType]] = {}
        self._copies: dict[int, tuple[FunctionType, FunctionType]] = {}
        for function in parts:
            if isinstance(function, FunctionType):
                self._add(function)

    def _add(self, function: FunctionType) -> None:
        if id(function) in self._copies or not self._names_model(function):
            return
        mine = FunctionType(
            function.__code__,
            function.__globals__,
            function.__name__,
            closure=tuple(map(self._cell, function.__closure__ or ())) or None,
        )
        mine.__qualname__, mine.__module__ = function.__qualname__, function.__module__
        vars(mine).update(vars(function))
        self._copies[id(function)] = function, mine
        for other in _walk(_named(function), set(), stops=True):
            if isinstance(other, FunctionType):
                self._add(other)

    def _cell(self, cell: CellType) -> CellType:
        """Return a cell for the copy of what this one holds, or this one."""
        if not self._names_model(_content(cell)):
            return cell
        return self._cells.setdefault(id(cell), (cell, CellType()))[1]

    def _names_model(self, value: Any) -> bool:
        walked = _walk(value, set(), stops=True)
        return any(id(part) in self._own for part in walked)

    def fill(self) -> None:
        """Let the copies name what has been copied."""
        for cell, mine in self._cells.values():
            mine.cell_contents = self.copy(cell.cell_contents)
        for function, copied in self._copies.values():
            defaults = function.__defaults__ or ()
            copied.__defaults__ = tuple(map(self.copy, defaults))
            named = function.__kwdefaults__ or {}
            copied.__kwdefaults__ = {k: self.copy(v) for k, v in named.items()}

    def copy(self, value: Any) -> Any:
        """Return a copy of what names the model, and anything else as it is."""
        if not self._names_model(value):
            return value
        return self.put(copy.deepcopy(value, self._memo))

    def put(self, value: Any) -> Any:
        """Replace the functions within `value`, which has been copied; return it."""
        if not self._copies:
            return value
        if isinstance(value, FunctionType):
            return self._copies.get(id(value), (value, value))[1]
        if isinstance(value, MethodType):
            return MethodType(self.put(value.__func__), self.put(value.__self__))
        if type(value) in (tuple, frozenset):
            return type(value)(map(self.put, value))
        if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named one
            return type(value)(*map(self.put, value))
        if isinstance(value, _PLAIN) or id(value) in self._done:
            return value
        self._done.add(id(value))
        if isinstance(value, functools.partial):
            bound = (value.func, value.args, value.keywords)
            # As for pickle, which typeshed does not know
            value.__setstate__(  # type: ignore[attr-defined]
                (*map(self.put, bound), vars(value))
            )
        elif isinstance(value, dict):
            value.update({key: self.put(item) for key, item in value.items()})
        elif isinstance(value, list):
            value[:] = map(self.put, value)
        elif isinstance(value, set):
            items = [*map(self.put, value)]
            value.clear()
            value.update(items)
        elif not isinstance(value, Tensor):
            self.put(getattr(value, "__dict__", None))
        return value


def _walk(value: Any, seen: set[int], *, stops: bool = False) -> Iterator[Any]:
    """Yield the modules, tensors and functions that `value` consists of, each once.

    That is what is copied with it. If it `stops`, it does not look into modules and
    tensors, and looks at what functions name.
    """
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen.add(id(value))
        is_part = isinstance(value, nn.Module | Tensor)
        if is_part or isinstance(value, FunctionType):
            yield value
        if not (is_part and stops):
            waiting += _within(value, stops)


def _within(value: Any, stops: bool) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, Tensor):
        return *_hooks_of(value), *vars(value).values()
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, FunctionType):
        return _named(value) if stops else ()
    if isinstance(value, functools.partial):
        return value.func, *value.args, *value.keywords.values()
    return getattr(value, "__dict__", {}).values()


def _named(function: FunctionType) -> list[Any]:
    """Return what a function refers to by its closure and its defaults."""
    return [
        *map(_content, function.__closure__ or ()),
        *(function.__defaults__ or ()),
        *(function.__kwdefaults__ or {}).values(),
    ]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it has none yet
        return None


def _is_copyable(tensor: Tensor) -> bool:
    return tensor.is_leaf and tensor.layout in (torch.strided, torch.sparse_coo)


def _hooks_of(tensor: Tensor) -> list[Any]:
    return [*_early_hooks(tensor), *_late_hooks(tensor)]


def _early_hooks(tensor: Tensor) -> list[Any]:
    return list((tensor._backward_hooks or {}).values())


def _late_hooks(tensor: Tensor) -> list[Any]:
    """Return the hooks that run when a gradient has been added up."""
    return list((tensor._post_accumulate_grad_hooks or {}).values())
