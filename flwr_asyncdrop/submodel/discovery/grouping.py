"""From classes of unit ids to groups of interchangeable units."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.discovery.labels import TOGETHER, LabelSpace
from flwr_asyncdrop.submodel.discovery.unionfind import Ids, UnionFind
from flwr_asyncdrop.submodel.narrowing.patches import makes_last_dim
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.types import (
    UnitKind,
    owner_of,
    parameters_of,
    shapes_of,
    tensors_of,
)

Axis: TypeAlias = tuple[str, int]
Use: TypeAlias = tuple[Axis, int]


def group_units(
    model: nn.Module, ids: Mapping[str, Sequence[Ids]], space: LabelSpace
) -> Plan:
    """Group the units that occupy the same axes of the traced model equally often.

    `ids` has per tensor and dim the unit id of every position. The plan has a reason
    for every module whose own units all stay whole.
    """
    units = space.units
    axes = {
        (name, dim): units.droppable(vector)
        for name, vectors in ids.items()
        for dim, vector in enumerate(vectors)
    }
    makers = _making_axes(model)
    members: list[Ids] = []
    groups: list[UnitGroup] = []
    for name, group in _named(_interchangeable(axes), list(axes), makers):
        least = int(units.least(group).max())
        if least >= len(group):
            units.freeze(group, f"{least} of {least} are chosen at a time")
            continue
        kind = _kind(units, group)
        groups.append(UnitGroup(name, len(group), kind, max(least, 1)))
        members.append(group)

    numbers = np.full(1 + max((v.max(initial=0) for v in axes.values()), default=0), -1)
    if members:
        numbers[np.concatenate(members)] = np.arange(sum(map(len, members)))
    numbered = {axis: numbers[vector] for axis, vector in axes.items()}
    tensors = tensors_of(model)
    left_out = {
        maker: units.reason(int(ids[axis[0]][axis[1]][0]))
        or _why_not_grouped(axes, axis, space)
        for axis, maker in reversed(makers.items())
        if (numbered[axis] < 0).all() and not _follows(tensors, numbered, axis)
    }
    return Plan(
        groups=tuple(groups),
        shapes=shapes_of(tensors),
        axes=_shared_axes(numbered),
        parameters=parameters_of(tensors),
        left_out=dict(reversed(left_out.items())),
    )


def _kind(units: UnionFind, group: Ids) -> UnitKind:
    if units.least(group).any():
        return "expert"
    if units.marked(group, "normalised").any():
        return "stream"
    return "residual" if units.marked(group, "residual").any() else "internal"


def _follows(
    tensors: Mapping[str, Tensor], numbered: Mapping[Axis, Ids], axis: Axis
) -> bool:
    """Whether a tensor is broadcast over a first dim and narrowed along another one.

    Such as a table of positions: what it has along `axis` are no units.
    """
    name, _ = axis
    tensor = tensors[name]
    others = (numbered[name, dim] for dim in range(tensor.dim()))
    return tensor.shape[0] == 1 and any(bool((other >= 0).any()) for other in others)


def _why_not_grouped(axes: Mapping[Axis, Ids], axis: Axis, space: LabelSpace) -> str:
    unit = axes[axis][0]
    if sum(bool((vector == unit).any()) for vector in axes.values()) > 1:
        alike = len(np.unique(axes[axis])) == 1
        return TOGETHER if alike else "no two of its units are used alike"
    operation = space.uses.last(int(unit), space.units)
    if operation is None:
        return "not used in any traced forward pass"
    return f"its units meet no other tensor: used last by {operation}"


def _making_axes(model: nn.Module) -> dict[Axis, str]:
    """Return the axes along which weights make units, with the maker's name."""
    makers: dict[Axis, str] = {}
    for name, tensor in tensors_of(model).items():
        if isinstance(tensor, nn.Parameter) and tensor.dim() > 1:
            owner = owner_of(name)
            maker = model.get_submodule(owner)
            transposed = isinstance(maker, nn.modules.conv._ConvTransposeNd)
            makes_dim_1 = transposed or makes_last_dim(maker)
            several = [dim for dim, size in enumerate(tensor.shape) if size > 1]
            dim = 1 if makes_dim_1 else min(several, default=0)
            makers[name, dim] = owner or name
    return makers


def _interchangeable(axes: Mapping[Axis, Ids]) -> list[tuple[list[Axis], Ids]]:
    """Return groups of units: the axes that they share, and their ids, ascending.

    A unit on a single axis is never consumed, and a group of one cannot lose a unit.
    """
    uses: defaultdict[int, list[Use]] = defaultdict(list)
    for axis, vector in axes.items():
        units, counts = np.unique(vector[vector != 0], return_counts=True)
        for unit, count in zip(units.tolist(), counts.tolist(), strict=True):
            uses[unit].append((axis, count))
    alike: defaultdict[tuple[Use, ...], list[int]] = defaultdict(list)
    for unit, places in uses.items():
        alike[tuple(places)].append(unit)
    return [
        ([axis for axis, _ in places], np.array(sorted(units)))
        for places, units in alike.items()
        if len(places) > 1 and len(units) > 1
    ]


def _named(
    groups: Sequence[tuple[list[Axis], Ids]],
    order: Sequence[Axis],
    makers: Mapping[Axis, str],
) -> list[tuple[str, Ids]]:
    """Name each group after the first module that makes its units; sort by model."""
    rank = {axis: number for number, axis in enumerate(order)}
    found = []
    for axes, units in groups:
        first = next((axis for axis in axes if axis in makers), axes[0])
        name = makers.get(first, owner_of(first[0]) or first[0])
        found.append((rank[first], int(units[0]), name, units))
    found.sort(key=lambda entry: entry[:2])
    taken: defaultdict[str, int] = defaultdict(int)
    named = []
    for _, _, name, units in found:
        taken[name] += 1
        named.append((f"{name}#{taken[name]}" if taken[name] > 1 else name, units))
    return named


def _shared_axes(numbered: Mapping[Axis, Ids]) -> dict[str, dict[int, Tensor]]:
    """Return the axes with droppable positions; equal ones share one tensor."""
    shared: dict[bytes, Tensor] = {}
    axes: dict[str, dict[int, Tensor]] = {}
    for (name, dim), vector in numbered.items():
        if (vector >= 0).any():
            tensor = shared.setdefault(vector.tobytes(), torch.from_numpy(vector))
            axes.setdefault(name, {})[dim] = tensor
    return axes
