"""Plan the submodels of a module: discover its units, verify them, keep what holds."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError, ShapeError, UnsupportedModelError
from flwr_asyncdrop.readable import first_line
from flwr_asyncdrop.submodel.default_device import cpu_by_default
from flwr_asyncdrop.submodel.discovery import discover
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.probe import Probe, probing
from flwr_asyncdrop.submodel.types import (
    Inputs,
    Scope,
    examples_of,
    frozen_of,
    parameters_of,
    tensors_of,
)
from flwr_asyncdrop.submodel.verification.gradients import find_other_gradients
from flwr_asyncdrop.submodel.verification.training import find_untrainable
from flwr_asyncdrop.submodel.verification.verify import find_faults

RESIDUAL = "carried by a residual stream, which the scope 'internal' leaves whole"
"""Why ``Plan.left_out`` has a group of the scope ``"all"``."""


@cpu_by_default()
def plan_submodels(
    model: nn.Module,
    example_inputs: Inputs,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    scope: Scope = "all",
) -> Plan:
    """Find which units of `model` can be dropped, and all that hangs on each.

    The model is copied to the CPU and run a few times, in eval and in training mode, on
    the inputs and on others of their kind: other values, batch sizes and, where it
    takes them, lengths. It stays as it is, and so do the process's random state and
    switches. Every group of the plan has been verified on the copy: its units are
    interchangeable, and a narrower model gives what the full one gives when units are
    silenced. A submodel has been loaded, and has made a training step. What cannot be
    dropped so is named, with the reason, in ``Plan.left_out``.

    Parameters
    ----------
    model : Module
        Any module that `copy.deepcopy` can copy.
    example_inputs : Tensor, tuple, mapping, or list of these
        The arguments of a forward pass: one tensor, a tuple of positional ones or a
        mapping of keyword ones. A list has those of several passes. A batch of one or
        two is enough.
    example_kwargs : mapping, optional
        Keyword arguments of every pass.
    scope : {"all", "internal", "stream"}
        ``"internal"`` leaves whole what residual streams carry, and drops only units
        that are made and consumed inside a block. ``"stream"`` drops more than
        ``"all"``: the units of streams that are normalised over them, by LayerNorm or
        RMSNorm, in groups of kind ``"stream"``. Without such a unit the others are
        normalised by statistics of their own, so that a submodel is a narrower model
        in its own right. It is not what the full model is with units silenced, and
        only verified to run, and to be the same in any order of its units.

    Returns
    -------
    Plan
        With at least one group.

    Raises
    ------
    ConfigError
        If `scope` is none of these.
    UnsupportedModelError
        If the model cannot be copied, does not run or train on the inputs, cannot be
        traced, or has no units that can be dropped.
    """
    if scope not in get_args(Scope):
        raise ConfigError(f"scope={scope!r} must be 'all', 'internal' or 'stream'")
    examples = examples_of(example_inputs, example_kwargs)
    with probing(model, examples) as probe:
        probe, plan = _discover(probe, streams=scope == "stream")
        if scope == "internal":
            residual = [n for n, g in enumerate(plan.groups) if g.kind == "residual"]
            plan = leave_out(plan, dict.fromkeys(residual, RESIDUAL))
        plan = leave_out(plan, find_faults(probe, plan))
        plan = leave_out(plan, find_other_gradients(probe, plan))
    source, example = _to_train(model, probe), probe.training_example
    del probe  # its memory
    plan = leave_out(plan, find_untrainable(source, example, plan))
    if not plan.groups:
        named = (f"{names}: {reason}" for reason, names in plan.by_reason().items())
        why = "; ".join(named) or "it has none"
        raise UnsupportedModelError(
            f"no units of {type(model).__name__} can be dropped ({why}): say with "
            "declare_plan which units it has, or train it whole, with drop rate 0"
        )
    return replace(plan, frozen=frozen_of(tensors_of(model)))


@cpu_by_default()
def verify_plan(
    model: nn.Module,
    example_inputs: Inputs,
    plan: Plan,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
) -> Plan:
    """Try a plan on the module that it is meant for, e.g. one from `declare_plan`.

    Parameters
    ----------
    model : Module
        Copied and run, as `plan_submodels` does.
    example_inputs : Tensor, tuple, mapping, or list of these
        As `plan_submodels` takes them.
    plan : Plan
        Every group of it has to hold.
    example_kwargs : mapping, optional
        Keyword arguments of every pass.

    Returns
    -------
    Plan
        The same plan, which now knows the parameters of `model` from its buffers.

    Raises
    ------
    ShapeError
        If its arrays are not those of the ``state_dict`` of `model`.
    UnsupportedModelError
        If a group does not hold: it is named, with the reason. Also if the model
        cannot be copied or does not run on the inputs.
    """
    tensors = tensors_of(model)
    _check_arrays(type(model).__name__, tensors, plan)
    parameters, frozen = parameters_of(tensors), frozen_of(tensors)
    plan = replace(plan, parameters=parameters, frozen=frozen)
    with probing(model, examples_of(example_inputs, example_kwargs)) as probe:
        faults = find_faults(probe, plan) or find_other_gradients(probe, plan)
    source, example = _to_train(model, probe), probe.training_example
    del probe  # its memory
    faults = faults or find_untrainable(source, example, plan)
    if faults:
        why = "; ".join(f"{plan.groups[n].name}: {why}" for n, why in faults.items())
        raise UnsupportedModelError(
            f"groups of the plan do not hold for {type(model).__name__} ({why}): name "
            "every dim of every tensor that has these units, and no other"
        )
    return plan


def _check_arrays(model: str, tensors: Mapping[str, Tensor], plan: Plan) -> None:
    for name in sorted(tensors.keys() | plan.shapes.keys()):
        actual = tuple(tensors[name].shape) if name in tensors else "no such tensor"
        declared = plan.shapes.get(name, "not there")
        if actual != declared:
            raise ShapeError(
                f"the plan is not of {model}: {name} is {declared} in the plan and "
                f"{actual} in the module; take the shapes from its state_dict"
            )


def _to_train(model: nn.Module, probe: Probe) -> nn.Module:
    """Return the model, or its copy that has values if it lies on the device meta."""
    on_meta = any(tensor.is_meta for tensor in tensors_of(model).values())
    return probe.model if on_meta else model


def _discover(probe: Probe, *, streams: bool) -> tuple[Probe, Plan]:
    try:
        plan, passes = discover(probe, streams=streams)
    except Exception as error:
        raise UnsupportedModelError(
            f"{type(probe.model).__name__} cannot be traced ({first_line(error)}): say "
            "with declare_plan which units it has, and check that with verify_plan"
        ) from error
    return replace(probe, passes=passes), plan


def leave_out(plan: Plan, reasons: Mapping[int, str]) -> Plan:
    """Return `plan` without the groups that have a reason, numbered anew."""
    kept = [number for number in range(len(plan.groups)) if number not in reasons]
    numbers = torch.full((plan.num_units + 1,), -1)
    first = 0
    for number in kept:
        offset, size = plan.offsets[number], plan.groups[number].size
        numbers[offset : offset + size] = torch.arange(first, first + size)
        first += size
    renumbered: dict[int, Tensor] = {}
    axes: dict[str, dict[int, Tensor]] = {}
    for name, dims in plan.axes.items():
        for dim, units in dims.items():
            renewed = renumbered.setdefault(id(units), numbers[units])
            if bool((renewed >= 0).any()):
                axes.setdefault(name, {})[dim] = renewed
    names = {plan.groups[number].name: reason for number, reason in reasons.items()}
    return replace(
        plan,
        groups=tuple(plan.groups[number] for number in kept),
        axes=axes,
        left_out=plan.left_out | names,
    )
