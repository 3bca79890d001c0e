"""A plan by hand, for models that cannot be traced or are not PyTorch's."""

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.submodel.plan import Plan, UnitGroup

Axis = int | tuple[int, Tensor]
"""A dim, or a dim and the unit of each of its positions (-1 = always kept)."""

Axes = Axis | list[Axis]
"""The same units along one dim of a tensor, or along several."""


def declare_plan(
    shapes: Mapping[str, Sequence[int]], groups: Mapping[str, Mapping[str, Axes]]
) -> Plan:
    """Say which dims of which tensors belong to which units.

    ``declare_plan({"w1": (64, 32), "b1": (32,), "w2": (32, 10)},
    {"hidden": {"w1": 1, "b1": 0, "w2": 0}})`` declares the 32 hidden neurons of a
    perceptron whose weights are ``(inputs, outputs)``.

    Parameters
    ----------
    shapes : mapping of str to sequence of int
        The full shape of every array of the model.
    groups : mapping of str to mapping of str to Axes
        Group name -> tensor name -> the dim that its units lie along, or a list of
        dims, as for the recurrent weights of an RNN. The group has
        as many units as the shortest of its dims; a dim that is ``k`` times as long
        has ``k`` neighbouring positions per unit, as after flattening ``(units, k)``.
        Any other layout is given position by position.

    Returns
    -------
    Plan
        Nothing has been run, so nothing is verified. If there is a module,
        `verify_plan` tries the plan on it.

    Raises
    ------
    ConfigError
        If no group is declared, or one is without tensors.
    ShapeError
        If a tensor or dim does not exist, or has no whole number of positions per
        unit, or a position belongs to two groups.
    """
    if not groups or not all(groups.values()):
        raise ConfigError(
            "declare at least one group, each with the dims of its tensors, e.g. "
            "{'hidden': {'w1': 1, 'b1': 0, 'w2': 0}}"
        )
    units: list[UnitGroup] = []
    axes: dict[str, dict[int, Tensor]] = {}
    offset = 0
    for name, tensors in groups.items():
        listed = list(_listed(tensors))
        size = min(_num_units(name, *axis, shapes) for axis in listed)
        units.append(UnitGroup(name, size, "internal"))
        for tensor, axis in listed:
            dim, positions = _positions(name, size, tensor, axis, shapes)
            known = axes.setdefault(tensor, {})
            fresh = torch.where(positions < 0, positions, positions + offset)
            known[dim] = _joined(name, tensor, known.get(dim), fresh)
        offset += size
    full = {name: tuple(shape) for name, shape in shapes.items()}
    return Plan(tuple(units), full, axes, frozenset(full))


def _listed(tensors: Mapping[str, Axes]) -> Iterator[tuple[str, Axis]]:
    for tensor, axes in tensors.items():
        for axis in axes if isinstance(axes, list) else [axes]:
            yield tensor, axis


def _num_units(
    group: str, tensor: str, axis: Axis, shapes: Mapping[str, Sequence[int]]
) -> int:
    if isinstance(axis, int):
        return _length(group, tensor, axis, shapes)
    return int(axis[1].max()) + 1


def _positions(
    group: str, size: int, tensor: str, axis: Axis, shapes: Mapping[str, Sequence[int]]
) -> tuple[int, Tensor]:
    dim = axis if isinstance(axis, int) else axis[0]
    length = _length(group, tensor, dim, shapes)
    if isinstance(axis, int):
        if length % size:
            raise ShapeError(
                f"group {group!r} has {size} units but dim {dim} of {tensor!r} has "
                f"{length} positions: give the unit of each position instead"
            )
        return dim, torch.arange(length) // (length // size)
    positions = axis[1].to(torch.int64)
    fits = positions.shape == (length,) and int(positions.min()) >= -1
    if not fits or int(positions.max()) >= size:
        raise ShapeError(
            f"the units of dim {dim} of {tensor!r} must be {length} numbers in "
            f"-1..{size - 1}, one for each position"
        )
    return dim, positions


def _length(
    group: str, tensor: str, dim: int, shapes: Mapping[str, Sequence[int]]
) -> int:
    if tensor not in shapes or not 0 <= dim < len(shapes[tensor]):
        raise ShapeError(
            f"group {group!r} names dim {dim} of {tensor!r}, which the model does not "
            f"have: its arrays are {', '.join(shapes)}"
        )
    return shapes[tensor][dim]


def _joined(group: str, tensor: str, known: Tensor | None, fresh: Tensor) -> Tensor:
    """Return a dim that several groups share, each with positions of its own."""
    if known is None:
        return fresh
    if bool(((known >= 0) & (fresh >= 0)).any()):
        raise ShapeError(
            f"group {group!r} claims positions of {tensor!r} that another group has"
        )
    return torch.where(known >= 0, known, fresh)
