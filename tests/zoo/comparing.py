"""Two tensors, element by element, whatever their scale."""

import torch
from torch import Tensor

__all__ = ["difference"]

# In double precision other orders of summation usually differ by less than this.
RELATIVE = 1e-10
# How much larger an error of rounding may be than that of another draw.
LUCK = 10


def difference(
    found: Tensor, expected: Tensor, whole: float = 1.0, shaken: Tensor | None = None
) -> str | None:
    """Return how `found` differs, or None where it does not.

    An element may be off by a small part of itself, of the tensor's median element
    (one huge or infinite element excuses no other), or by rounding errors of `whole`,
    the size of all that was computed. `shaken` is what is expected after errors of
    rounding: elements that these move may be off by as much.
    """
    if found.shape != expected.shape:
        return f"shape {tuple(found.shape)}, not {tuple(expected.shape)}"
    if expected.is_complex():
        found, expected = torch.view_as_real(found), torch.view_as_real(expected)
        shaken = shaken if shaken is None else torch.view_as_real(shaken)
    if not expected.is_floating_point():
        same = torch.equal(found, expected) or (
            shaken is not None and not torch.equal(shaken, expected)
        )
        return None if same else "other whole numbers"
    finite = expected.isfinite()
    same_rest = torch.where(expected.isnan(), found.isnan(), found == expected)
    if not bool((same_rest | finite).all()):
        return "infinite or undefined at other places"
    found, expected = found[finite], expected[finite]
    size = expected.abs()
    usual = float(size[size > 0].median()) if bool((size > 0).any()) else 0.0
    allowed = RELATIVE * (size + usual) + 1e-13 * whole
    if shaken is not None:
        allowed = allowed + _rounding(expected, shaken[finite], usual)
    off = (found - expected).abs()
    if bool((off <= allowed).all()):
        return None
    worst = int((off / allowed).nan_to_num(torch.inf).argmax())
    share = float((~(off <= allowed)).double().mean())
    return (
        f"{float(found[worst])!r}, not {float(expected[worst])!r} ({share:.0%} of the "
        f"elements differ; the median one is {usual:.1e})"
    )


def _rounding(expected: Tensor, shaken: Tensor, usual: float) -> Tensor:
    """Return how far rounding moves elements: the worst of those of usual size."""
    moved = (shaken - expected).abs().nan_to_num(0.0, 0.0)
    ordinary = expected.abs() <= 1e3 * usual
    worst = moved[ordinary].max() if bool(ordinary.any()) else moved.new_zeros(())
    return LUCK * torch.where(ordinary, worst, moved)
