"""How far each unit has moved from where it started, or is from zero."""

import itertools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel import Plan, State

_Array = npt.NDArray[Any]
_Sums = npt.NDArray[np.float64]

# Elements of a block of differences: small enough to stay in the cache between its
# making and its sums.
_BLOCK = 2**17
# Dtypes that stay as they are; of a complex number the absolute value counts.
_WIDE = (torch.float64, torch.complex64, torch.complex128)


def unit_scores(
    plan: Plan, state: State, initial: State | None, *, vectors: bool = True
) -> tuple[Tensor, ...]:
    """Sum up per unit how far its parameters are from their initial values.

    The score of Algorithm 3, ``v_j = ||W_t^j - W_0^j||_1``: the sum of ``|W - W_0|``
    over every coordinate that the unit indexes in any parameter, such as its filter,
    its column in the next layer, its bias and its norm weight. Without `vectors`, as in
    the authors' script, parameters of one dim do not count: biases and norm weights. A
    coordinate that a unit indexes along two dims counts once; one that two units index
    counts for both. Without `initial` values it is the distance from zero: the unit's
    L1 norm.

    Returns per group one score a unit, float64. ShapeError if a parameter of the plan
    is missing or has another shape. NumPy sums, on one thread: the scores decide who
    trains what, so they must not depend on torch's number of threads.
    """
    scores = np.zeros(plan.num_units)
    for name, dims in plan.axes.items():
        if name not in plan.parameters:
            continue
        if not vectors and len(plan.shapes[name]) < 2:
            continue
        now = _array(plan, name, state)
        then = _zeros(now) if initial is None else _array(plan, name, initial)
        units = {dim: ids.numpy() for dim, ids in dims.items()}
        sums = _sums_of_tied if _tied(units) else _sums
        for dim, moved in sums(now, then, units).items():
            real = units[dim] >= 0
            scores += np.bincount(units[dim][real], moved[real], len(scores))
    sizes = [group.size for group in plan.groups]
    return torch.split(torch.from_numpy(scores), sizes)


def _array(plan: Plan, name: str, state: State) -> _Array:
    """Return a parameter as NumPy knows it: half precision becomes single."""
    shape = plan.shapes[name]
    if name not in state or tuple(state[name].shape) != shape:
        found = tuple(state[name].shape) if name in state else "nothing"
        raise ShapeError(
            f"{name} is {found} where the plan has shape {shape}: "
            "score the states of the model that the plan was made of"
        )
    tensor = state[name].detach().cpu()
    wide = tensor if tensor.dtype in _WIDE else tensor.float()
    array: _Array = wide.numpy()
    return array


def _zeros(like: _Array) -> _Array:
    """Return zeros that take no memory."""
    return np.broadcast_to(like.dtype.type(0), like.shape)


def _sums(now: _Array, then: _Array, units: Mapping[int, _Array]) -> dict[int, _Sums]:
    """Return per dim in `units` the sums of ``|now - then|`` at each position."""
    width = math.prod(now.shape[1:])
    rows = max(_BLOCK // max(width, 1), 1)
    block = np.empty((min(rows, len(now)), width), now.dtype)
    of_rows = np.empty(len(now))
    over_rows = np.zeros(width)
    for start in range(0, len(now), rows):
        stop = min(start + rows, len(now))
        moved = block[: stop - start]
        np.subtract(
            now[start:stop].reshape(moved.shape),
            then[start:stop].reshape(moved.shape),
            out=moved,
        )
        far = np.abs(moved, out=None if np.iscomplexobj(moved) else moved)
        of_rows[start:stop] = far.sum(axis=1)
        over_rows += far.sum(axis=0)
    below = over_rows.reshape(now.shape[1:])
    return {dim: _sum_at(below, dim - 1) if dim else of_rows for dim in units}


def _sums_of_tied(
    now: _Array, then: _Array, units: Mapping[int, _Array]
) -> dict[int, _Sums]:
    """As :func:`_sums`, less what the same unit indexes along an earlier dim."""
    moved = np.abs(now.astype(np.result_type(now, np.float64)) - then)
    earlier: list[_Array] = []
    sums = {}
    for dim, ids in units.items():
        here = ids.reshape(-1, *[1] * (moved.ndim - dim - 1))
        fresh = moved
        for there in earlier:
            fresh = np.where(here == there, 0.0, fresh)
        sums[dim] = _sum_at(fresh, dim)
        earlier.append(here)
    return sums


def _tied(units: Mapping[int, _Array]) -> bool:
    return any(
        np.isin(one, other[other >= 0]).any()
        for one, other in itertools.combinations(units.values(), 2)
    )


def _sum_at(array: _Array, dim: int) -> _Sums:
    others = tuple(other for other in range(array.ndim) if other != dim)
    sums: _Sums = array.sum(axis=others, dtype=np.float64)
    return sums
