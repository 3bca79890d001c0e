"""The plan: which positions of which tensors belong to which droppable unit."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.readable import type_of
from flwr_asyncdrop.submodel.advice import advice_for
from flwr_asyncdrop.submodel.types import Indices, Keep, Shapes, UnitKind, is_ascending

_STREAM = (
    "stream: without some of these units a submodel is a narrower model in its own "
    "right, not the full one with units silenced"
)


@dataclass(frozen=True)
class UnitGroup:
    """Units that are interchangeable: any subset of them makes a submodel.

    Attributes
    ----------
    name : str
        The module that produces the units, e.g. ``"layer1.0.conv1"``.
    size : int
        The number of units.
    kind : {"internal", "residual", "stream", "expert"}
        ``"residual"`` when the units are carried by an addition of two branches,
        ``"internal"`` when they are made and consumed inside a block, ``"stream"`` when
        a residual stream that carries them is normalised over them, ``"expert"`` when
        they are the experts of a mixture.
    least : int
        How many of the units a submodel must keep.
    """

    name: str
    size: int
    kind: UnitKind
    least: int = 1


@dataclass(frozen=True, eq=False)
class Plan:
    """A verified map from units to tensor positions; made by ``plan_submodels``.

    Unit ids count through all groups: group ``g`` owns the ids from ``offsets[g]``
    to ``offsets[g] + groups[g].size - 1``.

    Attributes
    ----------
    groups : tuple of UnitGroup
        The droppable groups, in the order in which the model lists its tensors.
    shapes : dict of str to tuple of int
        The full shape of every tensor of the ``state_dict``.
    axes : dict of str to dict of int to Tensor
        Tensor name -> dim -> the unit id of each position (int64, ``-1`` = always
        kept). Dims on which nothing can be dropped are absent.
    parameters : frozenset of str
        The names in ``shapes`` that are parameters; the others are buffers.
    left_out : dict of str to str
        What stays whole (a module or tensor), and why.
    frozen : frozenset of str
        The parameters that did not require a gradient when the plan was made: they are
        narrowed like others, and do not travel.
    """

    groups: tuple[UnitGroup, ...]
    shapes: Shapes
    axes: dict[str, dict[int, Tensor]]
    parameters: frozenset[str]
    left_out: dict[str, str] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The first unit id of each group."""
        return tuple(accumulate((g.size for g in self.groups), initial=0))[:-1]

    @property
    def num_units(self) -> int:
        """The number of units in all groups together."""
        return sum(group.size for group in self.groups)

    def full_keep(self) -> Keep:
        """Return the keep that drops nothing."""
        return tuple(torch.arange(group.size) for group in self.groups)

    def indices(self, keep: Keep) -> Indices:
        """Turn kept units into kept positions of every narrowed tensor.

        Parameters
        ----------
        keep : tuple of Tensor
            Per group the kept unit numbers: int64, ascending, at least one.

        Returns
        -------
        dict of str to dict of int to Tensor
            Tensor name -> dim -> kept positions. Tensors and dims that lose nothing
            are absent.

        Raises
        ------
        ShapeError
            If `keep` does not fit the groups.
        """
        kept = self._kept_units(keep)
        positions: dict[int, Tensor | None] = {}
        result: Indices = {}
        for name, dims in self.axes.items():
            for dim, units in dims.items():
                if id(units) not in positions:
                    found = kept[units].nonzero().squeeze(1)
                    whole = len(found) == len(units)
                    positions[id(units)] = None if whole else found
                narrowed = positions[id(units)]
                if narrowed is not None:
                    result.setdefault(name, {})[dim] = narrowed
        return result

    def groups_of(self, units: Tensor) -> list[int]:
        """Return the numbers of the groups that have some of these unit ids."""
        starts = torch.tensor([*self.offsets, self.num_units])
        found = torch.searchsorted(starts, units[units >= 0], right=True) - 1
        return sorted(set(found.tolist()))

    def _kept_units(self, keep: Keep) -> Tensor:
        """Return one flag a unit id, and a last one, True, for id -1."""
        if not isinstance(keep, tuple | list):
            raise ShapeError(
                f"keep is {type_of(keep)}: pass a tuple with one tensor of "
                f"kept units for each of the {len(self.groups)} groups"
            )
        if len(keep) != len(self.groups):
            raise ShapeError(
                f"keep has {len(keep)} entries but the plan has {len(self.groups)} "
                "groups: pass one tensor of kept units per group"
            )
        flags = torch.zeros(self.num_units + 1, dtype=torch.bool)
        flags[-1] = True
        for group, offset, units in zip(self.groups, self.offsets, keep, strict=True):
            _check_units(group, units)
            flags[units + offset] = True
        return flags

    def shapes_of(self, indices: Indices) -> Shapes:
        """Return the shape that every tensor has in the submodel of `indices`."""
        return {
            name: narrowed_shape(shape, indices.get(name, {}))
            for name, shape in self.shapes.items()
        }

    def report(self) -> str:
        """Return a table of the groups, their share of the model, what stays whole.

        With the reasons, and what can be done about them.
        """
        shares = self._shares()
        width = max([len("group"), *(len(group.name) for group in self.groups)])
        lines = [f"{'group':<{width}}  units  kind      elements"]
        lines += [
            f"{group.name:<{width}}  {group.size:>5}  {group.kind:<8}  {share:>8.1%}"
            for group, share in zip(self.groups, shares, strict=True)
        ]
        if any(group.kind == "stream" for group in self.groups):
            lines.append(_STREAM)
        if self.frozen:
            share = self._elements(self.frozen) / max(self._elements(self.shapes), 1)
            lines.append(f"does not train, nor travel: {share:.1%} of the elements")
        for reason, names in self.by_reason().items():
            lines.append(f"whole ({reason}): {names}")
            if advice := advice_for(reason):
                lines.append(f"  {advice}")
        return "\n".join(lines)

    __str__ = report

    def by_reason(self) -> dict[str, str]:
        """Return what stays whole, with commas between names, by the reason."""
        names: dict[str, list[str]] = {}
        for name, reason in self.left_out.items():
            names.setdefault(reason, []).append(name)
        return {reason: ", ".join(those) for reason, those in names.items()}

    def _elements(self, names: Iterable[str]) -> int:
        return sum(math.prod(self.shapes[name]) for name in names)

    def _shares(self) -> list[float]:
        """Return per group the share of all elements that its units index.

        An element lies at a unit of two groups when both its row and its column can
        be dropped, so the shares may add up to more than one.
        """
        total = sum(math.prod(shape) for shape in self.shapes.values())
        counts = [0.0] * len(self.groups)
        for name, dims in self.axes.items():
            elements = math.prod(self.shapes[name])
            for group, offset in enumerate(self.offsets):
                untouched = 1.0
                for units in dims.values():
                    end = offset + self.groups[group].size
                    mine = (units >= offset) & (units < end)
                    untouched *= 1.0 - float(mine.double().mean())
                counts[group] += elements * (1.0 - untouched)
        return [count / max(total, 1) for count in counts]


def _check_units(group: UnitGroup, units: object) -> None:
    if not isinstance(units, Tensor):
        raise ShapeError(
            f"the kept units of {group.name} are {type_of(units)}: give an "
            "ascending int64 tensor"
        )
    if units.device.type != "cpu":
        raise ShapeError(
            f"the kept units of {group.name} are on {units.device}: give them on the "
            "CPU"
        )
    if not is_ascending(units) or not len(units):
        raise ShapeError(
            f"the kept units of {group.name} must be a non-empty ascending int64 "
            f"vector, not {units.dtype} of shape {tuple(units.shape)}"
        )
    if len(units) < group.least:
        raise ShapeError(
            f"{len(units)} units of {group.name} are kept, but the model chooses "
            f"{group.least} of them at a time: keep at least as many"
        )
    if int(units[0]) < 0 or int(units[-1]) >= group.size:
        raise ShapeError(
            f"the kept units of {group.name} lie in {int(units[0])}..{int(units[-1])} "
            f"but the group has the units 0..{group.size - 1}"
        )


def narrowed_shape(
    shape: tuple[int, ...], dims: Mapping[int, Tensor]
) -> tuple[int, ...]:
    """Return `shape` with the dims of `dims` as long as their kept positions."""
    return tuple(
        len(dims[dim]) if dim in dims else size for dim, size in enumerate(shape)
    )
