"""Tell rounding from a difference, element by element."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from flwr_asyncdrop.submodel.types import is_inexact

# How much the weights are shifted to see how much an output follows, relative to each:
# far more than they are rounded, and far less than a fault changes anything.
_SHIFTS = {torch.float64: 1e-12, torch.float32: 5e-5}
_MARGIN = 8.0
_QUANTILE = 0.1
_TINY = 1e-6  # of what the same operations give twice, in another order of sums


def shift_(tensors: Iterable[Tensor], dtype: torch.dtype) -> None:
    """Change real and complex tensors in place, by a little more than rounding does."""
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors:
        if is_inexact(tensor):
            noise = torch.empty_like(tensor).normal_(generator=generator)
            tensor.addcmul_(tensor, noise, value=_SHIFTS[dtype])


def agree(
    found: Sequence[Any],
    expected: Sequence[Any],
    shifted: Sequence[Any],
    dtype: torch.dtype,
) -> bool:
    """Tell whether the leaves of two outputs are equal, but for rounding.

    Elements are compared one by one: large ones, infinities and ones that are always
    the same hide nothing in others.

    Parameters
    ----------
    found, expected : sequence
        The leaves to compare.
    shifted : sequence
        Those of `found` after `shift_` of the weights: an element may differ by a few
        times as much as it moved, or as the elements that moved least did.
    dtype : torch.dtype
        float64 or float32, in which they were computed.
    """
    if not len(found) == len(expected) == len(shifted):
        return False
    leaves = zip(found, expected, shifted, strict=True)
    return all(_close(*leaf, _SHIFTS[dtype]) for leaf in leaves)


def any_nan(outputs: Sequence[Sequence[Any]]) -> bool:
    """Tell whether a number in the leaves of several passes is none."""
    tensors = [
        leaf for leaves in outputs for leaf in leaves if isinstance(leaf, Tensor)
    ]
    return any(bool(tensor.isnan().any()) for tensor in tensors)


def are_near(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Tell whether the leaves are equal, but for what is tiny beside the largest."""
    if len(found) != len(expected):
        return False
    return all(map(_near, found, expected))


def _near(found: Any, expected: Any) -> bool:
    if not isinstance(found, Tensor) or not is_inexact(found):
        return _close(found, expected, found, 0.0)
    if not isinstance(expected, Tensor) or found.shape != expected.shape:
        return False
    if found.layout is not torch.strided:
        found, expected = found.to_dense(), expected.to_dense()
    sizes = expected[expected.isfinite()].abs()
    tiny = _TINY * float(sizes.max()) if len(sizes) else 0.0
    return torch.allclose(found, expected, rtol=0.0, atol=tiny, equal_nan=True)


def are_still(found: Sequence[Sequence[Any]], shifted: Sequence[Sequence[Any]]) -> bool:
    """Tell whether there are real outputs, and none moved as the weights did.

    Both have the leaves of several passes, `shifted` after `shift_`.
    """
    pairs = [
        (one.to_dense(), other.to_dense())
        for ones, others in zip(found, shifted, strict=True)
        for one, other in zip(ones, others, strict=False)
        if isinstance(one, Tensor) and is_inexact(one)
    ]
    return bool(pairs) and not any(
        one.shape != other.shape or bool(((one != other) & one.isfinite()).any())
        for one, other in pairs
    )


def _close(found: Any, expected: Any, shifted: Any, shift: float) -> bool:
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return type(found) is type(expected) and bool(found == expected)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return False
    if found.layout is not torch.strided:
        found, expected, shifted = (t.to_dense() for t in (found, expected, shifted))
    if not is_inexact(found):
        return torch.equal(found, expected)
    finite = expected.isfinite() & found.isfinite()
    if not torch.equal(found[~finite], expected[~finite]):
        same = found[~finite].isnan() & expected[~finite].isnan()
        if not bool((same | (found[~finite] == expected[~finite])).all()):
            return False
    found, expected = found[finite], expected[finite]
    moved = torch.zeros_like(expected.abs())
    if shifted.shape == finite.shape:
        moved = (shifted[finite] - found).abs().nan_to_num(0.0, posinf=0.0)
    allowed = moved.clamp(min=_least(moved)) + shift * expected.abs()
    return bool(((found - expected).abs() <= _MARGIN * allowed).all())


def _least(moved: Tensor) -> float:
    """Return how much the elements that moved least did, without those that did not."""
    some = moved[moved > 0]
    if not len(some):
        return 0.0
    rank = max(int(len(some) * _QUANTILE), 1)
    return float(some.kthvalue(rank).values)
