"""Numbers that Python draws: what is only computed with them leads to no other path."""

import operator
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from numbers import Real
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

_PYTHON = (
    *("random", "uniform", "triangular", "randint", "randrange", "gauss"),
    *("normalvariate", "betavariate", "expovariate", "gammavariate"),
)
_NUMPY = (
    *("rand", "random", "random_sample", "uniform", "randint", "randn", "normal"),
    *("standard_normal", "beta", "exponential", "gamma", "binomial", "triangular"),
)
_DRAWING: tuple[tuple[ModuleType, Sequence[str]], ...]
_DRAWING = (random, _PYTHON), (np.random, _NUMPY)
_MAKING = (torch.tensor, torch.as_tensor)
_one_at_a_time = threading.RLock()  # modules have their functions for all threads
# Functions that take a number as a value among others, whatever it is.
_COMPUTING = (
    *("tensor", "as_tensor", "add", "sub", "mul", "div", "lerp"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)


class Watch:
    """Hears of what is drawn, and what code does with it; this one does not mind."""

    def note_drawn(self, tensor: Tensor) -> None:
        """Note that `tensor` has been drawn, or made of a number that was."""

    def note_number(self) -> None:
        """Note that code has a number of chance that nobody follows."""

    def note_choice(self) -> None:
        """Note that code goes by a comparison of a number that is followed."""

    def draw(self, function: Callable[[], Any]) -> Any:
        """Return what `function` draws, to be followed."""
        return function()


class Drawn:
    """A number that was drawn, or one that follows from it by arithmetic.

    What a comparison gives is decided by `follower`. Torch computes with it as with the
    number that it is. Anything else that asks for the number is noted.
    """

    __slots__ = ("_follower", "_value")
    __array_ufunc__ = None  # so that NumPy leaves arithmetic to it

    def __init__(self, value: Any, follower: "Follower") -> None:
        self._value, self._follower = value, follower

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
                self._follower.watch.note_drawn(leaf)
        return value

    def _read(self) -> Any:
        self._follower.watch.note_number()
        return self._value

    def _with(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        """Return ``function(number, other)``."""
        if isinstance(other, (Real, Drawn)):
            return Drawn(function(self._value, _plain(other)), self._follower)
        if isinstance(other, Tensor):
            return self._noted(function(self._value, other))
        return function(self._read(), other)

    def _compared(self, other: Any, function: Callable[[Any, Any], Any]) -> Any:
        if isinstance(other, (Real, Drawn)):
            return self._follower.decide(function(self._value, _plain(other)))
        return self._with(other, function)

    def __bool__(self) -> bool:
        return self._follower.decide(bool(self._value))

    def __neg__(self) -> "Drawn":
        return Drawn(-self._value, self._follower)

    def __pos__(self) -> "Drawn":
        return self

    def __abs__(self) -> "Drawn":
        return Drawn(abs(self._value), self._follower)

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


class Follower(TorchFunctionMode):
    """Gives code numbers that can be followed where it draws.

    From Python's and NumPy's global generators, if it names their functions by their
    modules, as in ``random.random()``, and by ``item()`` of a tensor that was drawn.
    Other threads draw plain numbers meanwhile.

    Parameters
    ----------
    watch : Watch
        Hears of it.
    decide : callable
        Gets what a comparison gives, and returns what it shall be.
    is_drawn : callable
        Tells whether a tensor is as it was drawn.
    """

    def __init__(
        self,
        watch: Watch,
        decide: Callable[[bool], bool],
        is_drawn: Callable[[Tensor], bool],
    ) -> None:
        super().__init__()
        self.watch, self.decide, self._is_drawn = watch, decide, is_drawn
        self._thread = threading.get_ident()
        self.has_followed = False
        """Whether there was a number."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Follow what ``item()`` returns, and numbers that a tensor is made of."""
        if func is Tensor.item and self._is_drawn(args[0]):
            with torch._C.DisableTorchFunction():  # nobody reads it
                return self._followed(args[0].numpy().item())
        if func in _MAKING and any(isinstance(k, Drawn) for k in tree_leaves(args)):
            return Drawn.__torch_function__(func, types, args, kwargs)
        return func(*args, **(kwargs or {}))

    @contextmanager
    def following(self) -> Iterator[None]:
        """Put itself in the place of functions that draw, until the context ends.

        A thread that plans another model waits until then.
        """
        with _one_at_a_time:
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
        @wraps(function)
        def draw(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != self._thread:
                return function(*args, **kwargs)
            number = self.watch.draw(lambda: function(*args, **kwargs))
            if isinstance(number, Real):
                return self._followed(number)
            if not isinstance(number, Drawn):
                self.watch.note_number()
            return number

        return draw

    def _followed(self, number: Any) -> Drawn:
        self.has_followed = True
        return Drawn(number, self)
