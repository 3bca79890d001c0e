"""Between the full state and a submodel's: slice out, and merge back in place."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel.fused import Runs, fused_add_, fused_mix_
from flwr_asyncdrop.submodel.plan import narrowed_shape
from flwr_asyncdrop.submodel.slots import Slots
from flwr_asyncdrop.submodel.types import (
    Indices,
    State,
    is_ascending,
    is_inexact,
    resolved,
)

_WHOLE: Mapping[int, Tensor] = {}


def extract(state: State, indices: Indices) -> State:
    """Copy a submodel's tensors out of the full state.

    Parameters
    ----------
    state : dict of str to Tensor
        The full model's ``state_dict``.
    indices : dict of str to dict of int to Tensor
        Tensor name -> dim -> kept positions (int64, ascending), as from
        ``Plan.indices``. Tensors that are absent are copied whole.

    Returns
    -------
    dict of str to Tensor
        Contiguous tensors under the same names that share no memory with `state`,
        shorter along the narrowed dims: empty where no position is kept.

    Raises
    ------
    ShapeError
        If `indices` do not fit `state`.
    """
    _check_indices(state, indices)
    return {
        name: part_of(tensor.detach(), indices.get(name, _WHOLE))
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)  # extra state of modules is not
    }


def part_of(tensor: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    """Copy a part out of one tensor, as `extract` does; `dims` are not checked."""
    slots = Slots.of(tensor, dims)
    if slots is not None:
        return slots.gather().view(narrowed_shape(tensor.shape, dims))
    part = tensor
    for dim in sorted(dims):
        part = part.index_select(dim, dims[dim].to(part.device))
    return part.clone(memory_format=torch.contiguous_format) if part is tensor else part


def silenced(state: State, indices: Indices) -> State:
    """Copy the full state, at full size, with all dropped coordinates zeroed."""
    _check_indices(state, indices)
    copied = {
        name: tensor.detach().clone()
        for name, tensor in state.items()
        if isinstance(tensor, Tensor)
    }
    for name, dims in indices.items():
        tensor = copied[name]
        for dim, kept in dims.items():
            dropped = torch.ones(tensor.shape[dim], dtype=torch.bool)
            dropped[kept] = False
            places = dropped.nonzero().squeeze(1).to(tensor.device)
            tensor.index_fill_(dim, places, 0)
    return copied


@torch.no_grad()
def merge_(full: State, sub: State, indices: Indices, weight: float) -> None:
    """Mix a submodel's tensors into the full state, on the kept coordinates only.

    Algorithm 2 of the paper, ``W <- W * (1 - M) + ((1 - a) W + a W_i) * M`` with the
    mask ``M`` given by `indices` and ``a`` by `weight`, as ``torch.lerp`` computes it.
    A weight of 1 copies `sub` bit for bit; dropped coordinates keep every bit.
    Counters (integer tensors such as ``num_batches_tracked``) take the elementwise
    maximum, whatever the weight.

    Parameters
    ----------
    full : dict of str to Tensor
        The full model's ``state_dict``; changed in place. No two of its tensors may
        share memory.
    sub : dict of str to Tensor
        The submodel's tensors, of the shapes that :func:`extract` gives; read only.
    indices : dict of str to dict of int to Tensor
        The indices that `sub` was extracted with.
    weight : float
        The share of `sub` in the result, in [0, 1].

    Raises
    ------
    ShapeError
        If names, shapes or dtypes do not fit; nothing has been touched then.
    """
    check_fits(full, sub, indices)
    runs: Runs = {}
    for name, tensor in full.items():
        fresh = resolved(sub[name].detach()).to(tensor.device).contiguous()
        dims = indices.get(name, _WHOLE)
        if not fused_mix_(tensor, fresh, dims, weight, runs):
            _merge_(tensor, fresh, dims, weight)


def add_(
    full: Tensor, part: Tensor, dims: Mapping[int, Tensor], scale: float = 1.0
) -> None:
    """Add a part of one tensor where it came from: ``full[kept] += scale * part``.

    `dims` has the kept positions of each narrowed dim, as in ``Plan.indices``; dtypes
    and devices are the same.
    """
    if not dims:
        full.add_(part, alpha=scale)
        return
    dim, *others = sorted(dims)
    kept = dims[dim].to(full.device)
    # PyTorch adds whole rows in one pass.
    if others or dim > 0:
        own = resolved(part).contiguous()
        if fused_add_(full, own, dims, scale):
            return
        slots = Slots.of(full, dims)
        if slots is not None:
            slots.add_(own, scale)
            return
    if not others:
        full.index_add_(dim, kept, part, alpha=scale)
        return
    rows = full.index_select(dim, kept)
    add_(rows, part, {other: dims[other] for other in others}, scale)
    full.index_copy_(dim, kept, rows)


def check_fits(full: State, sub: State, indices: Indices) -> None:
    """Raise ShapeError unless `sub` looks as if extracted from `full`."""
    _check_indices(full, indices)
    if sub.keys() != full.keys():
        missing, unknown = full.keys() - sub.keys(), sub.keys() - full.keys()
        raise ShapeError(
            f"the submodel lacks {sorted(missing)} and adds {sorted(unknown)}: "
            "return exactly the tensors that were sent"
        )
    for name, tensor in full.items():
        wanted = narrowed_shape(tensor.shape, indices.get(name, _WHOLE))
        found = sub[name]
        if tuple(found.shape) != wanted or found.dtype != tensor.dtype:
            raise ShapeError(
                f"{name} has {found.dtype} of shape {tuple(found.shape)} where "
                f"{tensor.dtype} of shape {wanted} was sent: return the tensors as "
                "they were sent"
            )


def _merge_(
    full: Tensor, sub: Tensor, dims: Mapping[int, Tensor], weight: float
) -> None:
    mixes = is_inexact(full)
    slots = Slots.of(full, dims) if mixes else None
    if slots is not None:
        slots.mix_(sub, weight)
    elif dims:
        # One dim at a time: take its kept positions out, merge into that copy, put
        # it back.
        dim, *others = sorted(dims)
        kept = dims[dim].to(full.device)
        part = full.index_select(dim, kept)
        _merge_(part, sub, {other: dims[other] for other in others}, weight)
        # Columns of a matrix: scatter_ takes half as long as index_copy_, but passes
        # half precision through float, which changes the bits of a NaN.
        if 0 < dim == full.dim() - 1 and full.element_size() >= 4:
            full.scatter_(dim, kept.expand_as(part), part)
        else:
            full.index_copy_(dim, kept, part)
    elif not mixes:
        full.copy_(torch.maximum(full, sub))
    elif weight == 1:
        full.copy_(sub)
    else:
        full.lerp_(sub, weight)


def _check_indices(state: State, indices: Indices) -> None:
    # A plan shares one index tensor among all tensors that a group narrows.
    checked: set[tuple[int, int]] = set()
    for name, dims in indices.items():
        if name not in state:
            raise ShapeError(
                f"the indices name {name!r}, which the model does not have: "
                "use the indices of this model's own plan"
            )
        shape = state[name].shape
        for dim, kept in dims.items():
            if not 0 <= dim < len(shape):
                raise ShapeError(
                    f"the indices narrow dim {dim} of {name}, whose shape is "
                    f"{tuple(shape)}: use the indices of this model's own plan"
                )
            if (id(kept), shape[dim]) not in checked:
                _check_positions(name, dim, kept, shape[dim])
                checked.add((id(kept), shape[dim]))


def _check_positions(name: str, dim: int, kept: Tensor, size: int) -> None:
    if not is_ascending(kept):
        raise ShapeError(
            f"the kept positions of {name}, dim {dim}, must be an ascending int64 "
            f"vector, not {kept.dtype} of shape {tuple(kept.shape)}"
        )
    if len(kept) and (int(kept[0]) < 0 or int(kept[-1]) >= size):
        raise ShapeError(
            f"the kept positions {int(kept[0])}..{int(kept[-1])} of {name}, dim {dim}, "
            f"do not lie in 0..{size - 1}: use the indices of this model's own plan"
        )
