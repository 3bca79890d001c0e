"""How much of the full model's compute a submodel takes."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from torch import nn

from flwr_asyncdrop.submodel import (
    FlopFormula,
    Inputs,
    Keep,
    LoraFlops,
    LoraPlan,
    Plan,
    forward_flops,
    narrow,
)

Shapes = Mapping[str, tuple[int, ...]]

ComputeShare = Callable[[Keep, Shapes], float]
"""From a submodel's units and shapes to its compute over the full model's."""

DurationRule = Literal["flops", "paper"]
"""What compute is measured in: FLOPs, or units as the paper has it."""

_COUNTED_FIRST = 16
"""Shapes that are counted before a formula is looked for, which takes 5 to 11 more."""
_REMEMBERED = 1024


def compute_share(
    plan: Plan,
    model: nn.Module | None,
    example_inputs: Inputs | None,
    rule: DurationRule = "flops",
) -> ComputeShare:
    """Return how to compare a submodel's compute with that of the full model.

    By FLOPs if there is a module to count them on and it has any, else by the number of
    weights, which is the same for fully connected layers. Adapters are a small part of
    what a device computes, so without the module, or FLOPs, a task of theirs counts in
    full. The rule ``"paper"`` takes the share of kept units, ``1 - drop rate``, as the
    paper's simulation does.
    """
    if rule == "paper":
        return lambda keep, _: sum(len(units) for units in keep) / plan.num_units
    if model is not None and example_inputs is not None:
        counted = _CountedShare(plan, _count(plan, model, example_inputs))
        if counted.whole > 0:
            return counted
    if isinstance(plan, LoraPlan):
        return lambda keep, shapes: 1.0
    elements = _elements(plan.shapes)
    return lambda _, shapes: _elements(shapes) / elements


def _count(
    plan: Plan, model: nn.Module, example_inputs: Inputs
) -> Callable[[Shapes], Sequence[int]]:
    """Return what counts the FLOPs of each operation of a submodel."""
    if isinstance(plan, LoraPlan):
        steps = LoraFlops(plan, model, example_inputs)
        return lambda shapes: steps.flops(dict(shapes))
    return lambda shapes: forward_flops(narrow(model, shapes), example_inputs)


class _CountedShare:
    """The FLOPs of a submodel over those of the full model.

    Those of the first shapes are counted, and those of more are computed from the
    number of units of each group, if the model is one where that gives what is counted.
    """

    def __init__(self, plan: Plan, count: Callable[[Shapes], Sequence[int]]) -> None:
        self._plan, self._count = plan, count
        self.whole = sum(count(plan.shapes))
        self._known: dict[tuple[tuple[int, ...], ...], int] = {}
        self._formula: FlopFormula | None = None
        self._looks_for_formula = True

    def __call__(self, keep: Keep, shapes: Shapes) -> float:
        return self._flops(keep, shapes) / self.whole

    def _flops(self, keep: Keep, shapes: Shapes) -> int:
        sizes = tuple(shapes.values())
        if sizes in self._known:
            return self._known[sizes]
        if self._looks_for_formula and len(self._known) == _COUNTED_FIRST:
            self._looks_for_formula = False
            self._formula = FlopFormula.of(self._plan, self._count)
        flops = None if self._formula is None else self._formula(keep)
        if flops is None:
            flops = sum(self._count(shapes))
        if len(self._known) == _REMEMBERED:
            self._known.clear()
        self._known[sizes] = flops
        return flops


def _elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
