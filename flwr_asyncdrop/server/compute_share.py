"""How much of the full model's compute a submodel takes."""

import math
from collections.abc import Callable, Mapping
from typing import Literal

from torch import nn

from flwr_asyncdrop.submodel import (
    Inputs,
    Keep,
    LoraFlops,
    LoraPlan,
    Plan,
    narrow,
    step_flops,
)

Shapes = Mapping[str, tuple[int, ...]]

ComputeShare = Callable[[Keep, Shapes], float]
"""From a submodel's units and shapes to its compute over the full model's."""

DurationRule = Literal["flops", "paper"]
"""What compute is measured in: FLOPs, or units as the paper has it."""


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
    paper's simulation does. Submodels of the same shapes are counted once.
    """
    if rule == "paper":
        return lambda keep, _: sum(len(units) for units in keep) / plan.num_units
    if isinstance(plan, LoraPlan):
        if model is None or example_inputs is None:
            return lambda keep, shapes: 1.0
        steps = LoraFlops(plan, model, example_inputs)
        whole = steps.count(plan.shapes)
        if whole == 0:
            return lambda keep, shapes: 1.0
        return _counted_once(lambda shapes: steps.count(dict(shapes)) / whole)
    if model is not None and example_inputs is not None:
        flops = step_flops(model, example_inputs)
        if flops > 0:
            return _counted_once(
                lambda shapes: step_flops(narrow(model, shapes), example_inputs) / flops
            )
    elements = _elements(plan.shapes)
    return lambda _, shapes: _elements(shapes) / elements


def _counted_once(share: Callable[[Shapes], float]) -> ComputeShare:
    known: dict[tuple[tuple[int, ...], ...], float] = {}

    def remembered(_: Keep, shapes: Shapes) -> float:
        sizes = tuple(shapes.values())
        if sizes not in known:
            known[sizes] = share(shapes)
        return known[sizes]

    return remembered


def _elements(shapes: Shapes) -> int:
    return sum(math.prod(shape) for shape in shapes.values())
