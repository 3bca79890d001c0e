"""Generators of random numbers: global ones, and those that a model keeps."""

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from flwr_asyncdrop.submodel.probing.nested import parts

_ATTRIBUTES = frozenset(vars(nn.Module()))  # of every module
_PLAIN = frozenset({bool, int, float, str, type(None)})


def own_generators(model: nn.Module) -> list[Any]:
    """Return the generators that modules keep, or that are global beside their code.

    None that draws from the system: it has no state.
    """
    kept: list[Any] = []
    files = set[str]()
    for module in model.modules():
        kept += [
            value
            for name, value in vars(module).items()
            if name not in _ATTRIBUTES and type(value) not in _PLAIN
        ]
        files |= {kind.__module__ for kind in type(module).__mro__}
    for name in sorted(files & sys.modules.keys()):
        if not name.startswith(("torch.", "builtins")):
            kept += filter(_is_generator, vars(sys.modules[name]).values())
    return list(filter(_is_generator, parts(kept)))


def _is_generator(value: Any) -> bool:
    if type(value) is torch.Generator:  # isinstance takes long there
        return True
    kinds = random.Random, np.random.Generator, np.random.RandomState
    return isinstance(value, kinds) and not isinstance(value, random.SystemRandom)


def states_of(own: Sequence[Any]) -> list[Any]:
    """Return what shows if somebody draws from these, or from a global generator.

    Not by torch, whose draws are operations.
    """
    others = [one for one in own if not isinstance(one, torch.Generator)]
    ways = [_PYTHON, _NUMPY, *map(_ways, others)]
    return [_comparable(get()) for get, _ in ways]


def _comparable(state: Any) -> Any:
    """Return a state with bytes in place of arrays."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    if isinstance(state, dict):
        return {name: _comparable(item) for name, item in state.items()}
    if isinstance(state, tuple) and any(isinstance(k, np.ndarray) for k in state):
        return [_comparable(item) for item in state]
    return state


@contextmanager
def same_random_state(model: nn.Module) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators; put their states back.

    Those of the generators that `model` keeps, too.
    """
    # torch.manual_seed asks for GPUs, which takes longer.
    by_torch = [torch.default_generator]
    own = own_generators(model)
    by_torch += [one for one in own if isinstance(one, torch.Generator)]
    ways = [_PYTHON, _NUMPY, *map(_ways, [torch.default_generator, *own])]
    saved = [(put, get()) for get, put in ways]
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.default_generator.manual_seed(0)
    for one in by_torch:  # so that it is not as if the model had just seeded it
        torch.rand(1, generator=one, device=one.device)
    try:
        yield
    finally:
        for put, state in saved:
            put(state)


_Ways = tuple[Callable[[], Any], Callable[[Any], Any]]  # to get a state and to put it
_PYTHON: _Ways = random.getstate, random.setstate
_NUMPY: _Ways = np.random.get_state, np.random.set_state


def _ways(generator: Any) -> _Ways:
    if isinstance(generator, random.Random):
        return generator.getstate, generator.setstate
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        return lambda: bits.state, partial(setattr, bits, "state")
    return generator.get_state, generator.set_state
