"""What a strategy's submodels leave out, and what they cost."""

import hashlib
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import replace
from statistics import fmean
from typing import Literal

from torch import nn

from flwr_asyncdrop.exceptions import ConfigError, UnsupportedModelError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.masks.policy import check_masks
from flwr_asyncdrop.parameters import Range
from flwr_asyncdrop.readable import printable, shown, type_of
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.coder import sizes_of
from flwr_asyncdrop.server.compute_share import DurationRule, compute_share
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import (
    Example,
    Inputs,
    Plan,
    Scope,
    check_maskable,
    check_module,
    content_hash,
    plan_blocks,
    plan_submodels,
)
from flwr_asyncdrop.wire.codec import Codec

_TASKS_TRIED = 8
_MODES = Range(lambda v: v in ("sliced", "masked"), "'sliced' or 'masked'")
_DURATIONS = Range(lambda v: v in ("flops", "paper"), "'flops' or 'paper'")
_WHOLE = Range(lambda v: v == "all", "'all': blocks go as a whole")


def build_assignment(
    strategy: str,
    masks: MaskPolicy | None,
    units: Literal["channels", "blocks"],
    model: nn.Module | None,
    example_inputs: list[Example] | None,
    *,
    plan: Plan | None,
    scope: Scope,
    mode: Literal["sliced", "masked"],
    duration: DurationRule,
) -> tuple[Assignment, Plan | None]:
    """Return what devices train, and the plan; messages name `strategy`."""
    _MODES.check("mode", mode)
    _DURATIONS.check("duration", duration)
    if masks is None:
        return Assignment(), None
    check_masks(masks)
    if units == "blocks":
        _WHOLE.check("scope", scope)
    if plan is None and masks.is_full and (model is None or example_inputs is None):
        return Assignment(), None
    try:
        plan = plan or discover(strategy, units, model, example_inputs, scope)
    except UnsupportedModelError:
        if not masks.is_full:
            raise
        return Assignment(), None
    compute = compute_share(plan, model, example_inputs, duration)
    masked = mode == "masked"
    if masked:
        check_maskable(plan, model, example_inputs or [])
    return Assignment(plan, masks, compute, masked=masked), plan


def check_model(strategy: str, model: object) -> None:
    """Raise ConfigError if `model` is no module; the message names `strategy`."""
    if isinstance(model, type) and issubclass(model, nn.Module):
        check_module(model)
    if model is not None and not isinstance(model, nn.Module):
        if _several(model):
            raise ConfigError(
                f"model is {type_of(model)} of modules: pass one nn.Module whose "
                "forward runs them all (docs/migrating.md#two-models)"
            )
        given = printable(shown(model))
        raise ConfigError(
            f"model={given} is no nn.Module: the arguments of Flower's FedAvg are "
            f"keywords here, e.g. {strategy}(fraction_train=0.5)"
        )


def _several(model: object) -> bool:
    members = model.values() if isinstance(model, dict) else model
    return isinstance(members, Iterable) and any(
        isinstance(each, nn.Module) for each in members
    )


def discover(
    strategy: str,
    units: Literal["channels", "blocks"],
    model: nn.Module | None,
    example_inputs: Inputs | None,
    scope: Scope,
) -> Plan:
    """Return the units of a model, or its residual blocks; messages name `strategy`."""
    if model is None or example_inputs is None:
        raise ConfigError(
            f"{strategy} makes submodels: pass the model and example inputs, e.g. "
            f"{strategy}(Net(), torch.zeros(1, 3, 32, 32)), or a plan; without "
            "submodels, drop_rate=0.0"
        )
    if units == "blocks":
        return plan_blocks(model, example_inputs)
    return plan_submodels(model, example_inputs, scope=scope)


def sha256_of_units(plan: Plan) -> str:
    """Return a hash that tells the units of a plan from those of another one."""
    places = {
        f"{name}, dim {dim}": units
        for name, dims in plan.axes.items()
        for dim, units in dims.items()
    }
    text = f"{plan.groups} {content_hash(places)}"
    return hashlib.sha256(text.encode()).hexdigest()


def first_costs(
    assignment: Assignment,
    state: RunState,
    num_ranks: int,
    codec: Codec | None = None,
) -> Sequence[TaskCost]:
    """Return what a task of each speed rank asks of its device at first.

    The mean of a few tasks: where counts of units are rounded by chance, they differ.
    Of a policy whose submodels grow during the run they are the first ones.
    With a `codec` the bytes are those of coded arrays.
    """
    dtypes = {name: tensor.dtype for name, tensor in state.arrays.items()}
    sizes = None if codec is None else lambda shapes: sizes_of(codec, shapes, dtypes)
    # A policy may change whenever it is asked, and the run has not begun.
    assignment = assignment.with_masks(deepcopy(assignment.masks))
    costs = []
    for rank in range(num_ranks):
        drawn = [
            assignment.first_cost(
                replace(state, dispatched=number), rank, num_ranks, sizes
            )
            for number in range(_TASKS_TRIED)
        ]
        costs.append(_mean(drawn))
    return costs


def _mean(costs: Sequence[TaskCost]) -> TaskCost:
    return TaskCost(
        fmean(cost.compute for cost in costs),
        round(fmean(cost.bytes_down for cost in costs)),
        round(fmean(cost.bytes_up for cost in costs)),
    )
