"""An independent judge of plans: the zero-masked full model against the submodel.

It shares no code with the planner. Of a plan it reads `groups`, `axes` and nothing
else. The package's `extract` and `load_submodel` are what is judged with it.
"""

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel import Plan, extract, load_submodel
from tests.zoo.comparing import difference
from tests.zoo.passes import Arguments, Observed, observe, steady

__all__ = ["NotTakenError", "WrongPlanError", "check", "random_kept"]

Positions = dict[str, dict[int, Tensor]]
"""Tensor name -> dim -> kept positions."""

# Errors of rounding, relative to each weight.
SHAKE = 1e-14


class WrongPlanError(AssertionError):
    """A plan that was handed out does not hold."""


class NotTakenError(Exception):
    """The full model itself does not run on the arguments."""


def random_kept(plan: Plan, seed: int) -> list[Tensor]:
    """Return random kept units of each group: any number that it allows."""
    generator = torch.Generator().manual_seed(seed)
    kept = []
    for group in plan.groups:
        least = min(getattr(group, "least", 1), group.size)
        count = int(torch.randint(least, group.size + 1, (), generator=generator))
        if seed % 3 == 0:  # about half: what the others mostly are not
            count = max(least, group.size // 2)
        shuffled = torch.randperm(group.size, generator=generator)
        kept.append(shuffled[:count].sort().values)
    return kept


def check(
    model: nn.Module, plan: Plan, kept: list[Tensor], given: Arguments, *, train: bool
) -> None:
    """Compare submodel and masked model: outputs, gradients, statistics.

    Raises
    ------
    WrongPlanError
        If the submodel does not run or differs.
    NotTakenError
        If the full model does not run on `given`.
    """
    full = steady(model).train(train)
    positions = kept_positions(plan, kept)
    try:
        small = load_submodel(full, extract(full.state_dict(), positions), scale=False)
    except Exception as error:
        raise WrongPlanError(f"not extracted or loaded: {error!r}"[:2000]) from error
    try:
        expected = _observe_masked(full, plan, positions, given)
    except Exception as error:
        raise NotTakenError(repr(error)) from error
    try:
        found = observe(small, given, {})
    except Exception as error:
        raise WrongPlanError(f"the submodel does not run: {error!r}"[:2000]) from error
    if _differences(found, expected):
        shaken = _shaken(steady(model).train(train))
        after = _observe_masked(shaken, plan, positions, given)
        differences = _differences(found, expected, after)
        if differences:
            name, why = next(iter(differences.items()))
            count = f" ({len(differences)} tensors differ)"
            raise WrongPlanError(f"{name}: {why}{count}"[:2000])


def _observe_masked(
    model: nn.Module, plan: Plan, positions: Positions, given: Arguments
) -> Observed:
    """Observe `model`, which loses its dropped units; kept positions are returned."""
    observed = observe(model, given, silence(model, plan, positions))
    for name, values in observed.tensors.items():
        for dim, places in positions.get(name, {}).items():
            values = values.index_select(dim, places)
        observed.tensors[name] = values
    return observed


@torch.no_grad()
def _shaken(model: nn.Module) -> nn.Module:
    """Return `model` with errors of rounding in its parameters."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            noise = torch.empty_like(parameter).uniform_(-1, 1, generator=generator)
            parameter.mul_(1 + SHAKE * noise)
    return model


def kept_positions(plan: Plan, kept: list[Tensor]) -> Positions:
    """Return the positions of each tensor whose units are kept."""
    flags, first = [], 0
    for group, units in zip(plan.groups, kept, strict=True):
        mine = torch.zeros(group.size, dtype=torch.bool)
        mine[units] = True
        flags.append(mine)
        first += group.size
    alive = torch.cat([*flags, torch.ones(1, dtype=torch.bool)])
    return {
        name: {dim: alive[units].nonzero().flatten() for dim, units in dims.items()}
        for name, dims in plan.axes.items()
    }


@torch.no_grad()
def silence(model: nn.Module, plan: Plan, positions: Positions) -> dict[int, Tensor]:
    """Put zeros wherever a dropped unit is; return the routers of dropped experts.

    The routers are the ids of their weights with the experts that may be chosen.
    """
    experts, first = {}, 0
    expert_units = torch.zeros(sum(g.size for g in plan.groups) + 1, dtype=torch.bool)
    for group in plan.groups:
        expert_units[first : first + group.size] = group.kind == "expert"
        first += group.size
    state = model.state_dict(keep_vars=True)
    for name, dims in positions.items():
        tensor = state[name]
        for dim, places in dims.items():
            dropped = torch.ones(tensor.shape[dim], dtype=torch.bool)
            dropped[places] = False
            if bool(expert_units[plan.axes[name][dim]].any()):
                if dim == 0 and tensor.dim() == 2:
                    experts[id(tensor)] = dropped
            elif not _is_direction(name, dim, positions):
                tensor.index_fill_(dim, dropped.nonzero().flatten(), 0)
    return experts


def _is_direction(name: str, dim: int, positions: Positions) -> bool:
    """Whether a magnitude beside it silences the tensor's units: 0 / 0 is not 0."""
    for direction, magnitude in (("weight_v", "weight_g"), ("original1", "original0")):
        if name.endswith(direction):
            other = name.removesuffix(direction) + magnitude
            return dim in positions.get(other, {})
    return False


def _differences(
    found: Observed, expected: Observed, shaken: Observed | None = None
) -> dict[str, str]:
    """Return what differs, and how."""
    if len(found.outputs) != len(expected.outputs):
        return {"the output": "another number of things"}
    result = {}
    for number, (one, other) in enumerate(
        zip(found.outputs, expected.outputs, strict=True)
    ):
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            moved = shaken.outputs[number] if shaken else None
            result[f"output {number}"] = difference(one, other, shaken=moved)
        elif one != other:
            result[f"output {number}"] = f"{one}, not {other}"
    computed = [each for each in expected.outputs if isinstance(each, Tensor)]
    computed += expected.tensors.values()
    whole = min(max(map(_largest, computed), default=0.0), 1.0)
    for name, other in expected.tensors.items():
        moved = shaken.tensors[name] if shaken else None
        result[name] = difference(found.tensors[name], other, whole, moved)
    return {name: why for name, why in result.items() if why is not None}


def _largest(tensor: Tensor) -> float:
    if not tensor.is_floating_point():
        return 0.0
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
