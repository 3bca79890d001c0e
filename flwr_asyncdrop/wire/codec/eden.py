"""The quantiser of rotated vectors.

Vargaftik et al., "EDEN: Communication-Efficient and Robust Distributed Mean Estimation
for Federated Learning", ICML 2022. The levels are those of Max, "Quantizing for minimum
distortion", IRE Transactions on Information Theory, 1960.
"""

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.wire.codec.hadamard import Rotation

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]

# What codes stand for, by their bits. The highest bit of a code is the sign; the other
# one says whether the magnitude is above the threshold. One bit needs the scale alone.
LEVELS = {
    1: np.array([-1, 1], np.float32),
    2: np.array([-0.4527800, -1.5104176, 0.4527800, 1.5104176], np.float32),
}
THRESHOLD = 0.9815988

_MOST = float(np.finfo(np.float32).max)
_LEAST = 2.0**-149  # of the numbers above 0


def quantise(
    vectors: Floats, rotation: Rotation, bits: int, used: float, *, unbiased: bool
) -> tuple[Floats, Codes]:
    """Rotate vectors, and quantise them.

    With r the rotated vector, q its levels and the scale |r|^2 / <r, q>, what is read
    is x + e. The mean of e is 0, that of |e|^2 is v |x|^2, where
    v = |r|^2 |q|^2 / <r, q>^2 - 1. Only the share `used` of e falls on numbers, the
    rest on the zeros behind them. The error is therefore least with that scale over
    1 + used v; without zeros, this is <r, q> / |q|^2.

    Parameters
    ----------
    vectors : ndarray of float32, shape (size, n)
        A vector is a column. They are overwritten.
    rotation : Rotation
    bits : int
        1 or 2.
    used : float
        Share of the numbers that are not zeros behind the last one.
    unbiased : bool
        Whether to take the first scale, or the one of the least error.

    Returns
    -------
    scales : ndarray of float32, shape (n,)
        0 for a vector of zeros.
    codes : ndarray of uint8, shape (size, n)
        0 where the scale is.
    """
    largest = np.abs(vectors).max(axis=0)
    empty = largest == 0
    # Neither squares nor sums can overflow then.
    vectors /= np.where(empty, np.float32(1), largest)
    rotated = rotation.apply(vectors)
    codes: Codes = (rotated >= 0).view(np.uint8)
    square = _products(rotated, rotated)
    if bits == 2:
        bound = np.sqrt(square / len(vectors)) * THRESHOLD
        codes *= 2
        codes += np.abs(rotated) > bound.astype(np.float32)
    levels = LEVELS[bits][codes]
    product = _products(rotated, levels)
    square[empty] = product[empty] = 1
    scales = square / product
    if not unbiased:
        scales /= 1 + used * (scales * _products(levels, levels) / product - 1)
    # The rotation made all numbers larger, by the size of a vector.
    scales = np.clip(scales * largest / len(vectors), _LEAST, _MOST)
    narrow = np.where(empty, 0, scales).astype(np.float32)
    codes[:, _are_zero(narrow)] = 0
    return narrow, codes


def restore(levels: Floats, scales: Floats, rotation: Rotation, bits: int) -> Floats:
    """Return the finite vectors of levels and scales; ValueError for wrong zeros.

    Parameters
    ----------
    levels : ndarray of float32, shape (size, n)
        They are overwritten.
    scales : ndarray of float32, shape (n,)
    rotation : Rotation
    bits : int
    """
    empty = _are_zero(scales)
    if (levels[:, empty] != LEVELS[bits][0]).any():
        raise ValueError("a vector of scale 0 has other codes than 0")
    levels *= np.float32(1 / len(levels))
    vectors = rotation.undo(levels)
    with np.errstate(over="ignore"):
        vectors *= scales
    vectors[:, empty] = 0  # some would be -0
    return np.clip(vectors, -_MOST, _MOST, out=vectors)


def _are_zero(scales: Floats) -> NDArray[np.bool_]:
    """Compare bits: numbers below 1e-38 are equal to 0 on some processors."""
    zeros: NDArray[np.bool_] = scales.view(np.uint32) == 0
    return zeros


def _products(left: Floats, right: Floats) -> NDArray[np.float64]:
    """Return the scalar product of each pair of columns."""
    products: Floats = np.einsum("ij,ij->j", left, right)
    return products.astype(np.float64)
