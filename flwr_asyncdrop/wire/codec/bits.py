"""Codes of 1, 2 or 4 bits in bytes: the first code in the lowest bits."""

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def join_bits(codes: Bytes, bits: int) -> Bytes:
    """Put codes below 2^bits into bytes; there must be as many as fill them."""
    if bits == 1:
        return np.packbits(codes, bitorder="little")
    if bits == 2:
        # All four bytes at once: each code moves beside the one before it.
        fours = codes.view("<u4")
        joined = fours | (fours >> 6) | (fours >> 12) | (fours >> 18)
    else:
        pairs = codes.view("<u2")
        joined = pairs | (pairs >> 4)
    packed: Bytes = joined.astype(np.uint8)
    return packed


def split_nibbles(packed: Bytes) -> Bytes:
    """Return the codes of 4 bits that are in bytes."""
    pairs = packed.astype("<u2")
    pairs |= pairs << 4
    pairs &= 0x0F0F
    return pairs.view(np.uint8)


def meanings(levels: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return what each byte of codes stands for, given what each code does.

    Parameters
    ----------
    levels : ndarray of float32, shape (2^bits,)

    Returns
    -------
    ndarray of float32, shape (256, 8 / bits)
    """
    bits = (len(levels) - 1).bit_length()
    shifts = np.arange(0, 8, bits)
    codes = (np.arange(256)[:, None] >> shifts) & (len(levels) - 1)
    found: NDArray[np.float32] = levels[codes]
    return found
