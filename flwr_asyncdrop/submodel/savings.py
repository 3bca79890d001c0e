"""What dropping units saves: bytes to send and floating-point operations."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel.counts import DropCounts
from flwr_asyncdrop.submodel.default_device import cpu_by_default
from flwr_asyncdrop.submodel.flops import step_flops
from flwr_asyncdrop.submodel.narrowing.narrow import load_submodel
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.transfer import extract
from flwr_asyncdrop.submodel.types import (
    Inputs,
    check_module,
    examples_of,
    frozen_of,
    shapes_of,
    tensors_of,
)

_NUM_DRAWS = 4


@dataclass(frozen=True)
class SubmodelCost:
    """What is left of a model when the share `rate` of each group's units is dropped.

    The ratios are over the full model's; `flops` are those of `step_flops`. Where these
    are 0 for the full model, too, there is nothing to save, and the ratio is 1.
    """

    rate: float
    num_bytes: int
    bytes_ratio: float
    flops: int
    flops_ratio: float


@cpu_by_default()
def savings(
    plan: Plan,
    model: nn.Module,
    example_inputs: Inputs,
    rates: Sequence[float] = (0.25, 0.5),
    *,
    example_kwargs: Mapping[str, Any] | None = None,
) -> tuple[SubmodelCost, ...]:
    """Return bytes and operations of submodels of `model`, one row a drop rate.

    All units of a group weigh the same, so it does not matter which ones are dropped.
    Where a count of units is rounded by chance, a row is the mean of a few draws. The
    model and each submodel run once, on the first of the inputs that `plan_submodels`
    takes. Bytes are those that travel: parameters without ``requires_grad`` do not,
    unless all are so. A rate outside [0, 1), or the plan of another model, raises
    ConfigError.
    """
    check_module(model)
    example_inputs = examples_of(example_inputs, example_kwargs)
    for rate in rates:
        if not 0 <= rate < 1:
            raise ConfigError(f"rates={rates!r} must all be in [0, 1)")
    _check_plan_of(plan, model)
    state = model.state_dict()
    all_bytes, all_flops = _num_bytes(model), step_flops(model, example_inputs)
    rows = []
    for rate in rates:
        sizes, operations = [], []
        for counts, times in _draws(plan, rate).items():
            kept = zip(plan.full_keep(), counts, strict=True)
            keep = tuple(units[: len(units) - drop] for units, drop in kept)
            sub = extract(state, plan.indices(keep))
            small = load_submodel(model, sub, scale=False)
            sizes += [_num_bytes(small)] * times
            operations += [step_flops(small, example_inputs)] * times
        size, flops = round(fmean(sizes)), round(fmean(operations))
        ratios = (size / max(all_bytes, 1), flops / all_flops if all_flops else 1.0)
        rows.append(SubmodelCost(rate, size, ratios[0], flops, ratios[1]))
    return tuple(rows)


def _check_plan_of(plan: Plan, model: nn.Module) -> None:
    shapes, kind = shapes_of(tensors_of(model)), type(model).__name__
    for name, shape in plan.shapes.items():
        if shapes.get(name) != shape:
            raise ConfigError(
                f"the plan has {name} of shape {shape}, and {kind} does not: pass the "
                "model that the plan was made of; of PEFT's adapters savings does not "
                "tell"
            )


def _draws(plan: Plan, rate: float) -> Counter[tuple[int, ...]]:
    """Return the counts of units to drop for evenly spaced draws, and how often."""
    counts = DropCounts(plan.groups, rate)
    return Counter(counts.of((k + 0.5) / _NUM_DRAWS) for k in range(_NUM_DRAWS))


def savings_table(rows: Iterable[SubmodelCost]) -> str:
    """Return the rows of `savings` as a readable table."""
    lines = ["dropped     bytes  of full     FLOPs  of full"]
    lines += [
        f"{row.rate:>7.1%}  {row.num_bytes:>8.3g}  {row.bytes_ratio:>7.1%}  "
        f"{row.flops:>8.3g}  {row.flops_ratio:>7.1%}"
        for row in rows
    ]
    return "\n".join(lines)


def droppable_share(plan: Plan) -> float:
    """Return the share of the model's elements that lie at a droppable unit."""
    total = sum(math.prod(shape) for shape in plan.shapes.values())
    droppable = 0.0
    for name, dims in plan.axes.items():
        fixed = math.prod(float((units < 0).double().mean()) for units in dims.values())
        droppable += math.prod(plan.shapes[name]) * (1 - fixed)
    return droppable / max(total, 1)


def _num_bytes(model: nn.Module) -> int:
    """Return the size of what travels: tied tensors count under each name."""
    tensors = tensors_of(model)
    frozen = frozen_of(tensors)
    return sum(t.nbytes for name, t in tensors.items() if name not in frozen)
