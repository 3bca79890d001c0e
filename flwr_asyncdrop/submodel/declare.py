"""A plan by hand, for models that cannot be traced or are not PyTorch's."""

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.readable import shown, type_of
from flwr_asyncdrop.submodel.default_device import cpu_by_default
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup
from flwr_asyncdrop.submodel.types import Shaped

Units: TypeAlias = Tensor | NDArray[Any] | Sequence[int]

Axis = int | tuple[int, Units]
"""A dim, or a dim and the unit of each of its positions (-1 = always kept)."""

Axes = Axis | list[Axis]
"""The same units along one dim of a tensor, or along several."""


@cpu_by_default()
def declare_plan(
    shapes: Mapping[str, Sequence[int] | Shaped],
    groups: Mapping[str, Mapping[str, Axes]],
) -> Plan:
    """Say which dims of which tensors belong to which units.

    ``declare_plan({"w1": (64, 32), "b1": (32,), "w2": (32, 10)},
    {"hidden": {"w1": 1, "b1": 0, "w2": 0}})`` declares the 32 hidden neurons of a
    perceptron whose weights are ``(inputs, outputs)``.

    Parameters
    ----------
    shapes : mapping of str to sequence of int
        The full shape of every array of the model, or the arrays themselves.
    groups : mapping of str to mapping of str to Axes
        Group name -> tensor name -> the dim that its units lie along, or a list of
        dims, as for the recurrent weights of an RNN. The group has
        as many units as the shortest of its dims; a dim that is ``k`` times as long
        has ``k`` neighbouring positions per unit, as after flattening ``(units, k)``.
        Any other layout is given position by position, as whole numbers.

    Returns
    -------
    Plan
        Nothing has been run, so nothing is verified. If there is a module,
        `verify_plan` tries the plan on it.

    Raises
    ------
    ConfigError
        If no group is declared, one is without tensors or a tensor without dims, or
        something is no mapping, no shape, or no whole number.
    ShapeError
        If a tensor or dim does not exist, or has no whole number of positions per
        unit, or none of a unit, or a position belongs to two groups.
    """
    for name, given in (("shapes", shapes), ("groups", groups)):
        _check_mapping(name, given)
    for name, tensors in groups.items():
        _check_mapping(f"groups[{name!r}]", tensors)
    full = {name: _shape_of(name, each) for name, each in shapes.items()}
    listed = [axes for tensors in groups.values() for axes in tensors.values()]
    is_empty = any(isinstance(axes, list) and not axes for axes in listed)
    if not groups or not all(groups.values()) or is_empty:
        raise ConfigError(
            "declare at least one group, each with the dims of its tensors, e.g. "
            "{'hidden': {'w1': 1, 'b1': 0, 'w2': 0}}"
        )
    units: list[UnitGroup] = []
    axes: dict[str, dict[int, Tensor]] = {}
    offset = 0
    for name, tensors in groups.items():
        places = list(_places(name, tensors, full))
        size = min(place.num_units() for place in places)
        if not size:
            raise ShapeError(f"group {name!r} has no units: a dim of it has none")
        units.append(UnitGroup(name, size, "internal"))
        for place in places:
            positions = place.positions(size)
            known = axes.setdefault(place.tensor, {})
            fresh = torch.where(positions < 0, positions, positions + offset)
            known[place.dim] = _joined(place, known.get(place.dim), fresh)
        offset += size
    return Plan(tuple(units), full, axes, frozenset(full))


class _Place(NamedTuple):
    """A dim of a tensor along which the units of a group lie."""

    group: str
    tensor: str
    dim: int
    length: int
    units: Tensor | None

    def num_units(self) -> int:
        return self.length if self.units is None else int(self.units.max()) + 1

    def positions(self, size: int) -> Tensor:
        """Return the unit, of `size` in the group, of each position."""
        if self.units is None:
            if self.length % size:
                raise ShapeError(
                    f"group {self.group!r} has {size} units but dim {self.dim} of "
                    f"{self.tensor!r} has {self.length} positions: give the unit of "
                    "each position instead"
                )
            return torch.arange(self.length) // (self.length // size)
        units = self.units
        fits = units.shape == (self.length,) and int(units.min()) >= -1
        if not fits or int(units.max()) >= size:
            raise ShapeError(
                f"the units of dim {self.dim} of {self.tensor!r} must be {self.length} "
                f"numbers in -1..{size - 1}, one for each position"
            )
        known = sorted(set(units[units >= 0].tolist()))
        if len(known) < size:
            gaps = (n for n, unit in enumerate(known) if n != unit)
            absent = next(gaps, len(known))
            raise ShapeError(
                f"unit {absent} of group {self.group!r} has no position in dim "
                f"{self.dim} of {self.tensor!r}: number units from 0, without gaps"
            )
        return units


def _places(
    group: str, tensors: Mapping[str, Axes], shapes: Mapping[str, Sequence[int]]
) -> Iterator[_Place]:
    for tensor, axes in tensors.items():
        for axis in axes if isinstance(axes, list) else [axes]:
            dim, units = _axis(group, tensor, axis)
            if tensor not in shapes or not 0 <= dim < len(shapes[tensor]):
                raise ShapeError(
                    f"group {group!r} names dim {dim} of {tensor!r}, which the model "
                    f"does not have: its arrays are {', '.join(shapes)}"
                )
            yield _Place(group, tensor, dim, shapes[tensor][dim], units)


def _axis(group: str, tensor: str, axis: Any) -> tuple[int, Tensor | None]:
    """Return a dim and the units of its positions, if they are given one by one."""
    dim, units = axis if isinstance(axis, tuple) and len(axis) == 2 else (axis, None)
    try:
        numbers = None if units is None else np.asarray(units)
        if numbers is None or (len(numbers) and numbers.dtype.kind in "iu"):
            given = (
                None if numbers is None else torch.from_numpy(numbers.astype(np.int64))
            )
            return operator.index(dim), given
    except (TypeError, ValueError, RuntimeError):
        pass
    raise ConfigError(
        f"groups[{group!r}][{tensor!r}] has {shown(axis)} where a dim should be: give "
        "a whole number, or a tuple of it and the unit of each position"
    )


def _check_mapping(name: str, given: object) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(
            f"{name} of declare_plan is {type_of(given)}, and must be a dict, "
            "e.g. declare_plan(model.state_dict(), {'hidden': {'0.weight': 0}})"
        )


def _shape_of(name: str, array: Any) -> tuple[int, ...]:
    try:
        sizes = array.shape if hasattr(array, "shape") else array
        shape = tuple(map(operator.index, sizes))
    except TypeError:
        shape = (-1,)
    if min(shape, default=0) < 0:
        raise ConfigError(
            f"shapes[{name!r}]={shown(array)} must be a shape, such as (64, 32), or "
            "have one"
        )
    return shape


def _joined(place: _Place, known: Tensor | None, fresh: Tensor) -> Tensor:
    """Return a dim that several groups share, each with positions of its own."""
    if known is None:
        return fresh
    if bool(((known >= 0) & (fresh >= 0)).any()):
        raise ShapeError(
            f"group {place.group!r} claims positions of {place.tensor!r} that another "
            "group has"
        )
    return torch.where(known >= 0, known, fresh)
