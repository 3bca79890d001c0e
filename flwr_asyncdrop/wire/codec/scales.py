"""Scales of blocks in 16 bits: a float32 without its sign and its last 15 bits.

It has all of float32's exponents, which float16 lacks: weights can be 1e-8. Eight bits
of the significand are left, and scales are rounded up, so that no number of a block is
beyond the last level: that costs at most 0.4 % of a step.
"""

import numpy as np
from numpy.typing import NDArray

SCALE_BYTES = 2

_DROPPED = 15
_INFINITE = 0x7F800000  # bits of float32's infinity
# The reciprocal of a smaller scale would overflow.
_LEAST = 0x00800000 >> _DROPPED

Codes = NDArray[np.uint16]


def largest_code(levels: int) -> int:
    """Return the code of the largest scale whose product with `levels` is finite."""
    bits = np.float32(np.finfo(np.float32).max / levels).view(np.uint32)
    return int(bits) >> _DROPPED


def scale_codes(values: NDArray[np.float32], levels: int) -> Codes:
    """Return the codes of the scales of blocks: largest magnitude over `levels`.

    Parameters
    ----------
    values : ndarray of float32, shape (blocks, size)
    levels : int
        Levels above 0.

    Returns
    -------
    ndarray of uint16, shape (blocks,)
        0 for a block of zeros. ValueError if a number is not finite.
    """
    # Magnitudes are ordered as their bits, which are the faster to compare.
    bits = (values.view(np.uint32) & 0x7FFFFFFF).max(axis=1)
    if bits.size and bits.max() >= _INFINITE:
        raise ValueError("values hold NaN or infinity")
    scales = (bits.view(np.float32) / np.float32(levels)).view(np.uint32)
    rounded = (scales + ((1 << _DROPPED) - 1)) >> _DROPPED
    codes: Codes = rounded.clip(_LEAST, largest_code(levels)).astype(np.uint16)
    codes[bits == 0] = 0
    return codes


def scales_from(codes: Codes) -> NDArray[np.float32]:
    """Return the scales of codes."""
    return (codes.astype(np.uint32) << _DROPPED).view(np.float32)


def write_scales(codes: Codes) -> bytes:
    """Write high bytes, then low ones: exponents are alike, and zstd sees it."""
    return codes.astype("<u2").view(np.uint8).reshape(-1, 2).T[::-1].tobytes()


def read_scales(data: bytes, levels: int) -> Codes:
    """Read what `write_scales` wrote of codes from `scale_codes`, else ValueError."""
    halves = np.frombuffer(data, np.uint8).reshape(2, -1).astype(np.uint16)
    codes: Codes = (halves[0] << 8) | halves[1]
    known = (codes == 0) | ((codes >= _LEAST) & (codes <= largest_code(levels)))
    if not known.all():
        raise ValueError("a scale is not finite, or out of range")
    return codes
