"""The FLOPs of submodels by a formula, which a few counts give."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement
from typing import Self

import numpy as np
import torch
from torch import Tensor

from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.types import Keep, Shapes

_MOST_AXES = 300
_MOST_SAMPLES = 8

_Sizes = tuple[int, ...]
"""How many units of each group a submodel keeps."""


@dataclass(frozen=True)
class _Axis:
    """A dim along which units lie.

    Attributes
    ----------
    fixed : int
        Positions that always stay.
    per_unit : tuple of (int, int)
        A group's number, and how many positions each of its units has.
    """

    fixed: int
    per_unit: tuple[tuple[int, int], ...]

    def length(self, sizes: _Sizes) -> int:
        return self.fixed + sum(sizes[group] * each for group, each in self.per_unit)


_Axes = tuple[_Axis, ...]
_Ratios = tuple[Fraction, ...]


class FlopFormula:
    """The FLOPs of a submodel, from how many units of each group it keeps.

    An operation takes a number of FLOPs that is a product of sizes: ``2 m n k`` for a
    matrix product. Narrowing makes one or two of them smaller, each as much as a dim of
    some tensor. So an operation takes ``f r_1 r_2`` FLOPs, with the shares ``r`` that
    the submodel keeps of two dims, or ``f r`` with that of one, or always ``f``.

    Parameters
    ----------
    terms : mapping of tuple to Fraction
        ``f`` of all operations together that the same dims make smaller.
    full : tuple of int
        The units of each group.
    """

    def __init__(self, terms: Mapping[_Axes, Fraction], full: _Sizes) -> None:
        self._terms, self._full = terms, full

    def __call__(self, keep: Keep) -> int | None:
        """Return the FLOPs of a submodel; None if the formula gives no whole number."""
        total = self._at(tuple(len(units) for units in keep))
        return int(total) if total.denominator == 1 else None

    def _at(self, sizes: _Sizes) -> Fraction:
        terms = self._terms.items()
        parts = (flops * _share(axes, sizes, self._full) for axes, flops in terms)
        return sum(parts, Fraction(0))

    @classmethod
    def of(cls, plan: Plan, count: Callable[[Shapes], Sequence[int]]) -> Self | None:
        """Find it, by submodels of a few sizes; None if some of them do not follow it.

        As many as tell all pairs of dims apart give the formula. It must hold for one
        more, for the smallest one, and for the full model, which may take other
        operations.

        Parameters
        ----------
        plan : Plan
            Of the model.
        count : callable
            Returns the FLOPs of each operation of a submodel, from its shapes.
        """
        full = tuple(group.size for group in plan.groups)
        least = tuple(group.least for group in plan.groups)
        generator = np.random.default_rng(0)
        chosen = _samples(plan, generator)
        if chosen is None:
            return None
        samples, known = chosen
        try:
            counts = [count(_shapes(plan, sizes)) for sizes in samples]
            terms = _terms(counts, known)
            if terms is None:
                return None
            first = samples[0]
            wholes = {axes: f / _share(axes, first, full) for axes, f in terms.items()}
            formula = cls(wholes, full)
            others = least, _some(plan, generator), full
            right = all(formula._at(s) == sum(count(_shapes(plan, s))) for s in others)
        except Exception:  # whatever the model's own code raises at another width
            return None
        return formula if right else None


def _samples(
    plan: Plan, generator: np.random.Generator
) -> tuple[list[_Sizes], dict[_Ratios, _Axes]] | None:
    """Return sizes at which all pairs of dims are told apart, and what tells them.

    None if there are no such sizes, or too many dims.
    """
    axes = _axes_of(plan)
    if not 0 < len(axes) <= _MOST_AXES:
        return None
    singles: list[_Axes] = [(), *((axis,) for axis in axes)]
    pairs = list(combinations_with_replacement(axes, 2))
    full = tuple(group.size for group in plan.groups)
    samples = [_some(plan, generator)]
    while len(samples) < _MOST_SAMPLES:
        samples.append(_some(plan, generator))
        known = {_ratios(each, samples, full): each for each in singles}
        if len(known) < len(singles):
            continue  # of two sizes each, for example: the pairs take longer
        known |= {_ratios(each, samples, full): each for each in pairs}
        if len(known) == len(singles) + len(pairs):
            return samples, known
    return None


def _terms(
    counts: Sequence[Sequence[int]], known: Mapping[_Ratios, _Axes]
) -> dict[_Axes, Fraction] | None:
    """Return the FLOPs of the first sample by the dims that they follow.

    None if an operation follows none, or is not in all samples.
    """
    if len({len(flops) for flops in counts}) > 1:
        return None
    terms: dict[_Axes, Fraction] = defaultdict(Fraction)
    for first, *others in zip(*counts, strict=True):
        if not any((first, *others)):
            continue
        ratios = tuple(Fraction(flops, first) for flops in others) if first else ()
        if ratios not in known:
            return None
        terms[known[ratios]] += first
    return terms


def _ratios(axes: _Axes, samples: Sequence[_Sizes], full: _Sizes) -> _Ratios:
    """Return how much more of some dims each later sample keeps than the first."""
    first, *others = (_share(axes, sizes, full) for sizes in samples)
    return tuple(share / first for share in others)


def _share(axes: _Axes, sizes: _Sizes, full: _Sizes) -> Fraction:
    """Return the product of the shares that a submodel keeps of some dims."""
    return Fraction(
        math.prod(axis.length(sizes) for axis in axes),
        math.prod(axis.length(full) for axis in axes),
    )


def _some(plan: Plan, generator: np.random.Generator) -> _Sizes:
    """Return random sizes, below the full ones but where that leaves no choice."""
    spans = ((group.least, group.size) for group in plan.groups)
    return tuple(
        int(generator.integers(least, size if size - least > 1 else size + 1))
        for least, size in spans
    )


def _shapes(plan: Plan, sizes: _Sizes) -> Shapes:
    keep = tuple(torch.arange(size) for size in sizes)
    return plan.shapes_of(plan.indices(keep))


def _axes_of(plan: Plan) -> list[_Axis]:
    """Return the dims of all tensors along which submodels are narrower, each once.

    But for those where the units of a group have not as many positions each.
    """
    units = {id(units): units for dims in plan.axes.values() for units in dims.values()}
    found = dict.fromkeys(_axis(plan, each) for each in units.values())
    return [axis for axis in found if axis is not None and axis.per_unit]


def _axis(plan: Plan, units: Tensor) -> _Axis | None:
    positions = torch.bincount(units[units >= 0], minlength=plan.num_units)
    by_group = torch.split(positions, [group.size for group in plan.groups])
    fixed, per_unit = int((units < 0).sum()), []
    for number, (group, each) in enumerate(zip(plan.groups, by_group, strict=True)):
        if (each != each[0]).any():
            return None
        if group.least == group.size:
            fixed += int(each.sum())
        elif each[0] > 0:
            per_unit.append((number, int(each[0])))
    common = math.gcd(fixed, *(each for _, each in per_unit)) or 1
    return _Axis(fixed // common, tuple((g, each // common) for g, each in per_unit))
