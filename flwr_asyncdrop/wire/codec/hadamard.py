"""Seeded rotations of many vectors at once: random signs and Hadamard matrices.

Butterflies only add and subtract, in an order of their own: a rotation has the same
bits on every machine.
"""

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.seeding import derive_seed

Floats = NDArray[np.float32]
Signs = NDArray[np.uint32]

_SIGN_BIT = 31
_DRAW_BITS = 64


def walsh_hadamard(columns: Floats) -> Floats:
    """Return H times each column; H has entries of 1 and -1 and is its own transpose.

    Parameters
    ----------
    columns : ndarray of float32, shape (size, n), contiguous
        Its size is a power of two. It is overwritten.

    Returns
    -------
    ndarray of float32, shape (size, n)
        H H = size I: twice that is the input times `size`.
    """
    source, target = columns, np.empty_like(columns)
    half = 1
    while half < len(columns):
        shape = (-1, 2, half * columns.shape[1])
        halves, out = source.reshape(shape), target.reshape(shape)
        np.add(halves[:, 0], halves[:, 1], out=out[:, 0])
        np.subtract(halves[:, 0], halves[:, 1], out=out[:, 1])
        source, target = target, source
        half *= 2
    return source


class SignStream:
    """A stream of random signs; `seed` decides all of it."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.SFC64(derive_seed(seed, "rotation"))

    def next(self, shape: tuple[int, int]) -> Signs:
        """Return the sign bits of as many float32 numbers, in their place."""
        count = shape[0] * shape[1]
        draws: NDArray[np.uint64] = self._bits.random_raw(-(-count // _DRAW_BITS))
        octets = draws.astype("<u8", copy=False).view(np.uint8)
        bits = np.unpackbits(octets, count=count, bitorder="little")
        signs = bits.astype(np.uint32)
        signs <<= _SIGN_BIT
        return signs.reshape(shape)


class Rotation:
    """H D2 H D1 of columns, times their size over what is orthonormal.

    D1 and D2 are diagonals of random signs. One round would leave a vector of one large
    number as numbers of one magnitude; after two, all vectors look like normal ones.
    """

    def __init__(self, signs: SignStream, shape: tuple[int, int]) -> None:
        self._first, self._second = signs.next(shape), signs.next(shape)

    def apply(self, columns: Floats) -> Floats:
        """Return the rotated columns; the argument is overwritten."""
        for signs in (self._first, self._second):
            _flip(columns, signs)
            columns = walsh_hadamard(columns)
        return columns

    def undo(self, columns: Floats) -> Floats:
        """Return what `apply` rotated, times size^2; the argument is overwritten."""
        for signs in (self._second, self._first):
            columns = walsh_hadamard(columns)
            _flip(columns, signs)
        return columns


def _flip(columns: Floats, signs: Signs) -> None:
    bits = columns.view(np.uint32)
    bits ^= signs
