"""Adding a submodel's tensor to the full one."""

from collections.abc import Mapping

from torch import Tensor


def add_(
    full: Tensor, part: Tensor, dims: Mapping[int, Tensor], scale: float = 1.0
) -> None:
    """Add a part of a tensor to the positions that it came from, in place.

    Parameters
    ----------
    full : Tensor
        Changed in place: ``full[kept] += scale * part``.
    part : Tensor
        Of the narrowed shape, same dtype and device.
    dims : dict of int to Tensor
        Dim -> kept positions (int64, ascending); empty if nothing is narrowed.
    scale : float
        Factor of `part`.
    """
    if not dims:
        full.add_(part, alpha=scale)
        return
    dim, *others = sorted(dims)
    kept = dims[dim].to(full.device)
    if not others:
        full.index_add_(dim, kept, part, alpha=scale)
        return
    rows = full.index_select(dim, kept)
    add_(rows, part, {other: dims[other] for other in others}, scale)
    full.index_copy_(dim, kept, rows)
