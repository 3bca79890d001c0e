"""Numbers that Python draws: what is only computed with them leads to no other path."""

import operator
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_PYTHON = (
    *("random", "uniform", "triangular", "randint", "randrange", "gauss"),
    *("normalvariate", "betavariate", "expovariate", "gammavariate"),
)
_NUMPY = (
    *("rand", "random", "random_sample", "uniform", "randint", "randn", "normal"),
    *("standard_normal", "beta", "exponential", "gamma", "binomial", "triangular"),
    "default_rng",
)
_DRAWING: tuple[tuple[ModuleType, Sequence[str]], ...]
_DRAWING = (random, _PYTHON), (np.random, _NUMPY)
_MAKING = (torch.tensor, torch.as_tensor)
# Functions that take a number as a value among others, whatever it is.
_COMPUTING = (
    *("tensor", "as_tensor", "add", "sub", "mul", "div", "lerp"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)


class Watch:
    """Hears of what is drawn, and what code does with it; this one does not mind.

    What is drawn `by_level` is another number in passes of another level.
    """

    def begin(self) -> None:
        """Note that from now on this thread alone draws from global generators."""

    def note_drawn(self, tensor: Tensor, *, by_level: bool = False) -> None:
        """Note that `tensor` has been drawn, or made of a number that was."""

    def note_number(self) -> None:
        """Note that code has a number of chance that nobody follows."""

    def note_choice(self, *, by_level: bool = False) -> None:
        """Note that code goes by a comparison of a number that is followed."""

    def draw(self, function: Callable[[], Any]) -> Any:
        """Return what `function` draws, to be followed."""
        return function()


@dataclass(frozen=True)
class Source:
    """Where numbers are drawn.

    Attributes
    ----------
    watch : Watch
        Hears of them.
    decide : callable
        Gets what a comparison gives, and returns what it shall be.
    by_level : bool
        Whether they follow from the level of the pass.
    """

    watch: Watch
    decide: Callable[[bool], bool]
    by_level: bool = False

    def note_drawn(self, tensor: Tensor) -> None:
        """Note that `tensor` is made of such a number."""
        self.watch.note_drawn(tensor, by_level=self.by_level)

    def choose(self, value: bool) -> bool:
        """Return what a comparison shall give, which is `value` by itself."""
        self.watch.note_choice(by_level=self.by_level)
        return self.decide(value)


class Drawn:
    """A number that was drawn, or one that follows from it by arithmetic.

    What a comparison gives is decided by its source. Torch computes with it as with the
    number that it is. Anything else that asks for the number is noted.
    """

    __slots__ = ("_source", "_value")
    __array_ufunc__ = None  # so that NumPy leaves arithmetic to it

    def __init__(self, value: Any, source: Source) -> None:
        self._value, self._source = value, source

    @property  # type: ignore[misc]  # as for mocks
    def __class__(self) -> type:
        """The number's, for code that asks what it is an instance of."""
        return type(self._value)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch's with plain numbers."""
        given = args, dict(kwargs or {})
        one = next(leaf for leaf in tree_leaves(given) if isinstance(leaf, cls))
        if func.__name__.rstrip("_") not in _COMPUTING:
            one._read()  # sizes may follow from it, for example
        plain, named = one._noted(tree_map(_plain, given))  # it may write on them
        return one._noted(func(*plain, **named))

    def _noted(self, value: Any) -> Any:
        for leaf in tree_leaves(value):
            if isinstance(leaf, Tensor):
                self._source.note_drawn(leaf)
        return value

    def _read(self) -> Any:
        self._source.watch.note_number()
        return self._value

    def _with(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        """Return ``function(number, other)``."""
        if isinstance(other, (Real, Drawn)):
            return Drawn(function(self._value, _plain(other)), self._source)
        if isinstance(other, Tensor):
            return self._noted(function(self._value, other))
        return function(self._read(), other)

    def _compared(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, (Real, Drawn)):
            return self._source.choose(bool(function(self._value, _plain(other))))
        return self._with(other, function)

    def __bool__(self) -> bool:
        return self._source.choose(bool(self._value))

    def __neg__(self) -> "Drawn":
        return Drawn(-self._value, self._source)

    def __pos__(self) -> "Drawn":
        return self

    def __abs__(self) -> "Drawn":
        return Drawn(abs(self._value), self._source)

    def __float__(self) -> float:
        return float(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __index__(self) -> int:
        return operator.index(self._read())

    def __round__(self, digits: int | None = None) -> Any:
        return round(self._read(), digits)

    def __reduce__(self) -> Any:
        return _plain, (self._read(),)  # a copy is a plain number

    def __hash__(self) -> int:
        return hash(self._read())

    def __repr__(self) -> str:
        return repr(self._read())

    def __format__(self, form: str) -> str:
        return format(self._read(), form)


def _plain(value: Any) -> Any:
    return value._value if isinstance(value, Drawn) else value


def _method(
    way: Callable[..., Any], function: Callable[[Any, Any], Any]
) -> Callable[[Drawn, Any], Any]:
    return lambda self, other: way(self, other, function)


def _swapped(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda number, other: function(other, number)


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    _function = getattr(operator, _name)
    setattr(Drawn, f"__{_name}__", _method(Drawn._with, _function))
    setattr(Drawn, f"__r{_name}__", _method(Drawn._with, _swapped(_function)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Drawn, f"__{_name}__", _method(Drawn._compared, getattr(operator, _name)))


_TORCHS = ("aten", "mkldnn", "prim", "prims", "profiler", "quantized")
"""The namespaces of torch's own operations, which check indices."""


class Follower(TorchFunctionMode):
    """Gives code numbers that can be followed where it draws.

    From Python's and NumPy's global generators, if it names their functions by their
    modules, as in ``random.random()``, and by ``item()`` of a tensor that was drawn.
    Other threads draw plain numbers meanwhile.

    Parameters
    ----------
    source : Source
        Of what Python and NumPy draw.
    source_of : callable
        Returns that of a tensor which is as it was drawn, and None for another one.
    """

    def __init__(
        self, source: Source, source_of: Callable[[Tensor], Source | None]
    ) -> None:
        super().__init__()
        self._source, self._source_of = source, source_of
        self._thread = threading.get_ident()
        self.has_followed = False
        """Whether there was a number."""
        self.runs_foreign = False
        """Whether there was an operation that is none of torch's own."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Follow what ``item()`` returns, and numbers that a tensor is made of."""
        if func is Tensor.item and (source := self._source_of(args[0])):
            with torch._C.DisableTorchFunction():  # nobody reads it
                return self._followed(args[0].numpy().item(), source)
        if isinstance(func, OpOverload | OpOverloadPacket):
            self.runs_foreign |= str(func).partition(".")[0] not in _TORCHS
        if func in _MAKING and any(isinstance(k, Drawn) for k in tree_leaves(args)):
            return Drawn.__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def following(self) -> Iterator[None]:
        """Put itself in the place of functions that draw, until the context ends."""
        own = [
            (module, name, getattr(module, name))
            for module, names in _DRAWING
            for name in names
        ]
        try:
            for module, name, function in own:
                setattr(module, name, self._drawing(function))
            with self:
                yield
        finally:
            for module, name, function in own:
                setattr(module, name, function)

    def _drawing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        watch = self._source.watch

        @wraps(function)
        def draw(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            number = watch.draw(lambda: function(*args, **kwargs))
            if isinstance(number, Real):
                return self._followed(number, self._source)
            seeds = [given for given in (*args, *kwargs.values()) if given is not None]
            repeats = bool(seeds) and isinstance(number, np.random.Generator)
            if not (isinstance(number, Drawn) or repeats):
                watch.note_number()
            return number

        return draw

    def _followed(self, number: Any, source: Source) -> Drawn:
        self.has_followed = True
        return Drawn(number, source)
