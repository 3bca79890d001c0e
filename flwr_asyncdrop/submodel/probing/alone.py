"""Leave the global generators of Python and NumPy to one thread for a while."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

import numpy as np

_Function = Callable[..., Any]

_one_at_a_time = threading.RLock()  # modules have their functions for all threads
_holder = 0  # the thread whose draws are from the global generators


@contextmanager
def drawing_alone() -> Iterator[None]:
    """Let other threads draw from generators of their own until the context ends.

    A draw of theirs would pass for one of the model's code. It may be nested; a thread
    that plans another model waits until then.
    """
    global _holder
    with _one_at_a_time:
        before = _holder, [getattr(module, name) for module, name, _ in _SHARED]
        try:
            _holder = threading.get_ident()
            for module, name, shared in _SHARED:
                setattr(module, name, shared)
            yield
        finally:
            _holder, functions = before
            for (module, name, _), function in zip(_SHARED, functions, strict=True):
                setattr(module, name, function)


def _shared(
    module: ModuleType, own: object, elsewhere: object
) -> Iterator[tuple[ModuleType, str, _Function]]:
    """Yield the functions of a module that draw from its own generator, divided."""
    for name, function in list(vars(module).items()):
        # NumPy's seed is no method of its generator.
        if getattr(function, "__self__", None) is own or name == "seed":
            yield module, name, _divided(function, getattr(elsewhere, name))


def _divided(function: _Function, elsewhere: _Function) -> _Function:
    @wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Any:
        here = threading.get_ident() == _holder
        return (function if here else elsewhere)(*args, **kwargs)

    return draw


_PYTHONS = random.random.__self__  # type: ignore[attr-defined]  # a bound method
_NUMPYS = np.random.rand.__self__  # type: ignore[attr-defined]
_SHARED = (
    *_shared(random, _PYTHONS, random.Random()),  # noqa: S311
    *_shared(np.random, _NUMPYS, np.random.RandomState()),
)
