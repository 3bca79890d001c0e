"""Whether two runs of a model give the same, but for rounding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def agree(found: Sequence[Any], expected: Sequence[Any], tolerance: float) -> bool:
    """Tell whether the leaves of two outputs are equal.

    Parameters
    ----------
    found, expected : sequence
        Tensors, numbers or whatever else a model returns.
    tolerance : float
        The largest difference, relative to the tensor's largest value, that rounding
        explains. Only floating-point tensors are rounded.
    """
    return len(found) == len(expected) and all(
        _close(one, other, tolerance)
        for one, other in zip(found, expected, strict=True)
    )


def _close(found: Any, expected: Any, tolerance: float) -> bool:
    if not isinstance(found, Tensor) or not isinstance(expected, Tensor):
        return bool(found == expected)
    if found.shape != expected.shape or not found.is_floating_point():
        return torch.equal(found, expected)
    if not expected.numel():
        return True
    difference = (found - expected).abs().max()
    return bool(difference <= tolerance * expected.abs().max())
