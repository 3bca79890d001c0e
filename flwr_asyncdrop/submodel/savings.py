"""What dropping units saves: bytes to send and floating-point operations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel.flops import step_flops
from flwr_asyncdrop.submodel.narrow import load_submodel
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.tensors import tensors_of
from flwr_asyncdrop.submodel.transfer import extract
from flwr_asyncdrop.submodel.types import Keep


@dataclass(frozen=True)
class Saving:
    """What is left of a model at one drop rate.

    Attributes
    ----------
    rate : float
        The share of the units of each group that is dropped.
    num_bytes : int
        The size of the submodel's tensors.
    bytes_ratio : float
        The same over the full model's.
    flops : int
        The floating-point operations of one forward pass, see `step_flops`.
    flops_ratio : float
        The same over the full model's.
    """

    rate: float
    num_bytes: int
    bytes_ratio: float
    flops: int
    flops_ratio: float


def savings(
    plan: Plan,
    model: nn.Module,
    example_inputs: Tensor | tuple[Any, ...],
    rates: Sequence[float] = (0.25, 0.5),
) -> tuple[Saving, ...]:
    """Return bytes and operations of submodels of `model`, one row a drop rate.

    All units of a group weigh the same, so it does not matter which ones are dropped.

    Parameters
    ----------
    plan : Plan
        Made for `model`.
    model : Module
        Not touched; it and each submodel run once.
    example_inputs : Tensor or tuple
        The positional arguments of one forward pass, on the model's device.
    rates : sequence of float
        Shares of the units of each group, each in [0, 1).

    Raises
    ------
    ConfigError
        If a rate is not in [0, 1).
    """
    for rate in rates:
        if not 0 <= rate < 1:
            raise ConfigError(f"rates={rates!r} must all be in [0, 1)")
    state = model.state_dict()
    full = (_num_bytes(model), step_flops(model, example_inputs))
    rows = []
    for rate in rates:
        sub = extract(state, plan.indices(_first_units(plan, rate)))
        small = load_submodel(model, sub, scale=False)
        size, flops = _num_bytes(small), step_flops(small, example_inputs)
        rows.append(
            Saving(rate, size, size / max(full[0], 1), flops, flops / max(full[1], 1))
        )
    return tuple(rows)


def savings_table(rows: Iterable[Saving]) -> str:
    """Return the rows as a readable table."""
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


def _first_units(plan: Plan, rate: float) -> Keep:
    full = plan.full_keep()
    return tuple(units[: len(units) - int(len(units) * rate)] for units in full)


def _num_bytes(model: nn.Module) -> int:
    """Return the size of the ``state_dict``: tied tensors count under each name."""
    tensors = tensors_of(model).values()
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
