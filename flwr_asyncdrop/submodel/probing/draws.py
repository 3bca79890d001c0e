"""Run a model with fixed random draws, and along a path that its data did not take."""

from collections.abc import Callable, Mapping, MutableMapping
from contextlib import ExitStack
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils.weak import WeakTensorKeyDictionary

from flwr_asyncdrop.submodel.dispatch import DispatchMode
from flwr_asyncdrop.submodel.probing.alone import drawing_alone
from flwr_asyncdrop.submodel.probing.drawn import Follower, Source, Watch

Outcomes: TypeAlias = Mapping[int, bool]
"""Number of a truth value, in the order of the pass -> its value."""

MIDDLE, EXTREMES = 0.3, (0.001, 0.999)
"""Levels of random numbers: an ordinary one, and those that take rare branches."""

_Draw: TypeAlias = Callable[[Mapping[str, Any], Tensor, float], Any]


class FixedDraws(DispatchMode):
    """Random numbers that are all equal, whatever their shape; dropout drops nothing.

    So a narrower model computes what the full one does in training mode as well. What
    comes from a generator that the pass has seeded stays: it is always the same.

    Parameters
    ----------
    level : float
        Where in their range, in (0, 1), the numbers lie: a branch on a random number
        takes one path at a low level and the other at a high one.
    outcomes : mapping of int to bool
        What truth values read from tensors (``if x.mean() > 0``), and of numbers that
        Python draws (``if random.random() < 0.1``), shall be.
    follows : bool
        Whether numbers that Python draws are followed. Some code takes plain ones only.
    watch : Watch, optional
        Hears of the tensors that are drawn, and of those numbers.

    Attributes
    ----------
    truths : list of bool
        The truth values read so far.
    uses_level : bool
        Whether a random number that depends on the level was drawn.
    runs_foreign : bool
        Whether there was an operation of another package, such as torch_scatter, which
        may write beyond its memory at indices that are wrong. It is seen where
        `follows`, and not within ``torch.jit.script``.
    """

    def __init__(
        self,
        level: float = MIDDLE,
        outcomes: Outcomes | None = None,
        *,
        follows: bool = True,
        watch: Watch | None = None,
    ) -> None:
        super().__init__()
        self._watch = watch or Watch()
        self._level = level
        self._outcomes = outcomes or {}
        self.truths: list[bool] = []
        self.uses_level = False
        self._seeded: list[torch.Generator] = []
        self._drawn: MutableMapping[Tensor, tuple[int, Source]]
        self._drawn = WeakTensorKeyDictionary()  # with their versions
        self._follows, self._stack = follows, ExitStack()
        self._source = Source(self._watch, self._decide)
        self._by_level = Source(self._watch, self._decide, by_level=True)
        self._follower = Follower(self._source, self._source_of)

    def __enter__(self) -> Self:
        """Begin, and follow numbers that Python draws."""
        super().__enter__()  # type: ignore[no-untyped-call]
        self._stack.enter_context(drawing_alone())
        self._watch.begin()
        if self._follows:
            self._stack.enter_context(self._follower.following())
        return self

    def __exit__(self, *error: Any) -> None:
        """End."""
        self._stack.close()
        super().__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def has_followed(self) -> bool:
        """Whether there was a number to follow."""
        return self._follower.has_followed

    @property
    def runs_foreign(self) -> bool:
        """Whether there was an operation of another package."""
        return self._follower.runs_foreign

    def _decide(self, value: bool) -> bool:
        """Return what the next truth value shall be, which is `value` by itself."""
        decided = self._outcomes.get(len(self.truths), value)
        self.truths.append(decided)
        return decided

    def _source_of(self, tensor: Tensor) -> Source | None:
        """Return where a tensor comes from that is as it was drawn."""
        version, source = self._drawn.get(tensor, (None, None))
        return source if version == tensor._version else None

    def operate(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run it, and put what it draws, or the outcome of a test, in its place."""
        if func.overloadpacket in _SLOPES:
            args = self._with_one_slope(*args)
        is_random = torch.Tag.nondeterministic_seeded in func.tags
        repeats = is_random and self._repeats(kwargs.get("generator"))
        result = func(*args, **kwargs)
        if isinstance(result, bool):
            result = self._decide(result)
        elif is_random and not repeats:
            draw = _DRAWS.get(func.overloadpacket.__name__)
            by_level = draw in (_uniform, _normal, _exponential)
            self.uses_level |= by_level
            if draw is not None:
                names = (entry.name for entry in func._schema.arguments)
                arguments = dict(zip(names, args, strict=False)) | kwargs
                result = draw(arguments, result, self._level)
            if isinstance(result, Tensor):
                source = self._by_level if by_level else self._source
                source.note_drawn(result)
                self._drawn[result] = result._version, source
        return result

    def _with_one_slope(
        self, x: Tensor, noise: Tensor, low: float, high: float, *rest: Any
    ) -> tuple[Any, ...]:
        """Let a slope be drawn from a range that has one number alone, in training."""
        if any(rest[:1]):
            self.uses_level = True
            low = high = low + (high - low) * self._level
        return (x, noise, low, high, *rest)

    def _repeats(self, generator: torch.Generator | None) -> bool:
        """Whether the pass itself has seeded the generator."""
        generator = generator or torch.default_generator
        if not any(generator is seeded for seeded in self._seeded):
            fresh = torch.Generator(generator.device)
            fresh.manual_seed(generator.initial_seed())
            # By NumPy: torch.equal would be a truth value that the model reads.
            states = generator.get_state().numpy(), fresh.get_state().numpy()
            if not np.array_equal(*states):
                return False
            self._seeded.append(generator)
        return True


def _uniform(arguments: Mapping[str, Any], drawn: Tensor, level: float) -> Tensor:
    low, high = arguments.get("from", 0.0), arguments.get("to", 1.0)
    return drawn.fill_(low + (high - low) * level)


def _normal(_: Mapping[str, Any], drawn: Tensor, level: float) -> Tensor:
    return drawn.fill_(4 * level - 2)  # two standard deviations to either side


def _bernoulli(_: Mapping[str, Any], drawn: Tensor, __: float) -> Tensor:
    return drawn.fill_(1)


def _exponential(_: Mapping[str, Any], drawn: Tensor, level: float) -> Tensor:
    return drawn.fill_(2 * level)


def _integers(arguments: Mapping[str, Any], drawn: Tensor, _: float) -> Tensor:
    return drawn.fill_(arguments.get("low", 0))


def _dropout(arguments: Mapping[str, Any], drawn: Any, _: float) -> Any:
    return arguments["input"].clone(), drawn[1].fill_(True)


def _permutation(_: Mapping[str, Any], drawn: Tensor, __: float) -> Tensor:
    return drawn.copy_(torch.arange(len(drawn)))


_DRAWS: dict[str, _Draw] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "uniform_": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "normal_": _normal,
    "normal_functional": _normal,
    "bernoulli": _bernoulli,
    "bernoulli_": _bernoulli,
    "exponential": _exponential,
    "exponential_": _exponential,
    "randint": _integers,
    "randint_like": _integers,
    "randperm": _permutation,
    "native_dropout": _dropout,
}


_SLOPES = (torch.ops.aten.rrelu_with_noise, torch.ops.aten.rrelu_with_noise_)
