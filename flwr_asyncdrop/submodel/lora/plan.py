"""The plan of a model with adapters: what travels, and what of it can be dropped."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError, UnsupportedModelError
from flwr_asyncdrop.submodel.default_device import cpu_by_default
from flwr_asyncdrop.submodel.lora.pairs import Adapter, Pairs, find_adapters
from flwr_asyncdrop.submodel.lora.tensors import (
    check_unmerged,
    current_memory,
    is_peft,
    travelling,
)
from flwr_asyncdrop.submodel.lora.trial import find_nonlinear, find_wrong
from flwr_asyncdrop.submodel.narrowing.in_place import overlapping
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.types import (
    Inputs,
    Shaped,
    Shapes,
    check_module,
    examples_of,
    parameters_of,
    shapes_of,
    tensors_of,
)

LoraUnits = Literal["ranks", "adapters", "layers"]
"""What a submodel leaves out: rank components, adapters, or all adapters of layers."""


@dataclass(frozen=True, eq=False)
class LoraPlan(Plan):
    """A plan over the tensors of adapters; made by `lora_plan`.

    Attributes
    ----------
    adapters : tuple of Adapter
        The pairs of factors, in the order in which the model lists them.
    pairs : sequence of tuple or None
        Their names as they were given; None if they are named like PEFT's.
    nonlinear : tuple of str
        The names of adapters with something between the factors, such as a ReLU. They
        are sums of components, and no product of two factors.
    """

    adapters: tuple[Adapter, ...] = ()
    pairs: Pairs | None = None
    nonlinear: tuple[str, ...] = ()


@cpu_by_default()
def lora_plan(
    model: nn.Module | Mapping[str, Shaped],
    example_inputs: Inputs | None = None,
    *,
    units: LoraUnits = "ranks",
    shared: bool = False,
    pairs: Pairs | None = None,
    example_kwargs: Mapping[str, Any] | None = None,
) -> LoraPlan:
    """Find which parts of the adapters of `model` can be dropped.

    A rank component is a row of ``A`` with a column of ``B``. All else that travels
    stays whole, as ``modules_to_save`` of PEFT do. What does not travel, the frozen
    base, is not in the plan.

    Parameters
    ----------
    model : Module or mapping of str to arrays
        A PEFT model with LoRA adapters, or a module with adapters of its own whose base
        is frozen; or what `lora_state` returns of one. It stays as it is.
    example_inputs : Tensor, tuple, mapping, or list of these, optional
        As `plan_submodels` takes them. The module is run on the first of them, with and
        without some of the units: it must give without them what it gives with them
        zeroed. A module with adapters of its own needs them, since its code may take
        the scaling from the number of components that are left; and so do `pairs` of
        a PEFT model.
    units : {"ranks", "adapters", "layers"}
        Rank components; or whole adapters; or all adapters of a layer together, where a
        layer is a module with a number in its name, as ``layers.3``. Adapters and
        layers are one group, from the last to the first: with an ordered mask, devices
        keep those next to the output.
    shared : bool, default False
        Whether a device has the same components of every adapter, which are one group
        then. If not, every adapter is its own group.
    pairs : sequence of tuple, optional
        The names of ``A`` and ``B`` of every adapter, if they are not named like PEFT's
        ``lora_A`` and ``lora_B``: ``[("down", "up")]``, or with the dims that the
        components lie along, ``[("down", "up", 0, 1)]``.
    example_kwargs : mapping, optional
        Keyword arguments of every pass.

    Returns
    -------
    LoraPlan
        For ``AsyncStrategy(plan=...)``, with ``lora_state(model)`` as initial arrays.

    Raises
    ------
    ConfigError
        If there are no adapters, an option is none of these, a PEFT model trains
        parameters that are not in what `lora_state` returns, or a module with adapters
        of its own or with `pairs` comes without example inputs.
    ShapeError
        If two factors do not fit, or do not tell their rank.
    UnsupportedModelError
        If the adapters are not sums of rank components, as those of DoRA, or the model
        without some of them is not what it is with these zeroed.
    """
    if units not in get_args(LoraUnits):
        raise ConfigError(f"units={units!r} must be 'ranks', 'adapters' or 'layers'")
    if not isinstance(model, Mapping):
        check_module(model)
    if isinstance(model, nn.Module):
        tensors = travelling(model)
        shapes, parameters = shapes_of(tensors), parameters_of(tensors)
        _check_full(model, shapes)
        _check_all_travels(model, tensors)
    else:
        tensors = {n: array for n, array in model.items() if isinstance(array, Tensor)}
        shapes = {name: tuple(array.shape) for name, array in model.items()}
        parameters = frozenset(shapes)
    adapters = find_adapters(shapes, pairs)
    _check_untied(tensors, adapters)
    if isinstance(model, nn.Module):
        check_unmerged(model, adapters)
    groups = _groups(adapters, units, shared)
    axes = _axes(groups, shapes)
    plan = LoraPlan(
        groups=tuple(UnitGroup(name, size, "internal") for name, size, _ in groups),
        shapes=shapes,
        axes=axes,
        parameters=parameters,
        left_out={n: "is no factor of an adapter" for n in shapes if n not in axes},
        adapters=adapters,
        pairs=pairs,
    )
    if isinstance(model, nn.Module):
        return _verified(model, plan, example_inputs, example_kwargs)
    return plan


@dataclass(frozen=True)
class _Part:
    """An adapter whose components are units of a group: all the same one, or each."""

    adapter: Adapter
    unit: int | None = None

    def units(self, offset: int) -> Iterator[tuple[str, int, Tensor]]:
        """Yield tensors, dims, and the unit of every position."""
        adapter, rank = self.adapter, self.adapter.rank
        ids = (
            torch.arange(rank) if self.unit is None else torch.full((rank,), self.unit)
        )
        yield adapter.a, adapter.a_dim, ids + offset
        yield adapter.b, adapter.b_dim, ids + offset


_Group = tuple[str, int, Sequence[_Part]]


def _groups(
    adapters: Sequence[Adapter], units: LoraUnits, shared: bool
) -> list[_Group]:
    if units == "ranks":
        if not shared:
            return [(each.name, each.rank, [_Part(each)]) for each in adapters]
        ranks = sorted({adapter.rank for adapter in adapters})
        if len(ranks) > 1:
            raise ConfigError(
                f"the adapters have ranks {', '.join(map(str, ranks))}, and "
                "shared=True needs the same of all: leave shared out, or rank_pattern"
            )
        return [("ranks", ranks[0], [_Part(adapter) for adapter in adapters])]
    if shared:
        raise ConfigError(f"shared=True is for units='ranks', not for {units!r}")
    names = [a.name if units == "adapters" else _layer_of(a.name) for a in adapters]
    order = list(dict.fromkeys(reversed(names)))
    if len(order) < 2:
        raise ConfigError(
            f"units={units!r} needs at least two of them, and there is {order[0]}: "
            "choose units='ranks'"
        )
    parts = [
        _Part(adapter, order.index(name))
        for adapter, name in zip(adapters, names, strict=True)
    ]
    return [(f"adapted {units}", len(order), parts)]


def _layer_of(name: str) -> str:
    """Return the outermost module with a number in its name, e.g. ``layers.3``."""
    parts = name.split(".")
    numbered = (n for n, part in enumerate(parts) if part.isdigit())
    return ".".join(parts[: next(numbered, len(parts)) + 1])


def _axes(groups: Sequence[_Group], shapes: Shapes) -> dict[str, dict[int, Tensor]]:
    axes: dict[str, dict[int, Tensor]] = {}
    offset = 0
    for _, size, parts in groups:
        for part in parts:
            for name, dim, ids in part.units(offset):
                axes[name] = {dim: ids}
            bias = part.adapter.bias
            if bias and part.unit is not None:
                axes[bias] = {0: torch.full(shapes[bias], part.unit + offset)}
        offset += size
    return axes


def _check_full(model: nn.Module, shapes: Shapes) -> None:
    """Raise ConfigError if `load_lora` has narrowed the model."""
    memory = current_memory(model, shapes)
    if memory is not None and memory.shapes != shapes:
        raise ConfigError(
            f"load_lora has narrowed this {type(model).__name__}: load all components, "
            "or plan another one at full rank"
        )


def _check_all_travels(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Raise ConfigError if a PEFT model trains what PEFT does not hand out."""
    travels = {id(tensor) for tensor in tensors.values()}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in travels:
            raise ConfigError(
                f"{name} trains, and would not travel: name its module in "
                "modules_to_save of the LoraConfig, or freeze it with "
                "requires_grad_(False)"
            )


def _check_untied(tensors: Mapping[str, Tensor], adapters: Sequence[Adapter]) -> None:
    """Raise UnsupportedModelError if a factor travels under two names."""
    factors = {n for each in adapters for n in (each.a, each.b)}
    names: dict[int, str] = {}
    same = [(names.setdefault(id(t), n), n) for n, t in tensors.items()]
    tied = [(*pair, "are one tensor") for pair in same if len(set(pair)) > 1]
    tied += [(*pair, "share memory") for pair in overlapping(tensors)]
    for name, other, how in tied:
        if {name, other} & factors:
            raise UnsupportedModelError(
                f"{name} and {other} {how}, which two groups would cut differently: do "
                "not tie adapters"
            )


def _verified(
    model: nn.Module,
    plan: LoraPlan,
    example_inputs: Inputs | None,
    example_kwargs: Mapping[str, Any] | None,
) -> LoraPlan:
    """Return the plan of a model that does without units of every group."""
    kind = type(model).__name__
    if example_inputs is None:
        if is_peft(model) and plan.pairs is None:  # whose layers are known
            return plan
        what = "pairs" if is_peft(model) else "adapters of its own"
        raise ConfigError(
            f"{kind} has {what}: pass example_inputs, on which it is tried without "
            "some of their components"
        )
    if any(tensor.is_meta for tensor in tensors_of(model).values()):
        raise UnsupportedModelError(
            f"{kind} is on the device meta, where nothing can be tried: build it on "
            "the CPU, or leave example_inputs out if its adapters are PEFT's"
        )
    example = examples_of(example_inputs, example_kwargs)[0]
    wrong = find_wrong(model, plan, plan.pairs, example)
    if wrong:
        names, reasons = ", ".join(wrong), dict.fromkeys(wrong.values())
        raise UnsupportedModelError(f"{names}: {'; '.join(reasons)}")
    nonlinear = find_nonlinear(model, plan, plan.adapters, plan.pairs, example)
    return replace(plan, nonlinear=nonlinear)
