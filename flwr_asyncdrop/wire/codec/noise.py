"""The random part of stochastic rounding: x goes to floor(x + u), u uniform in (0, 1).

With B random bits, u is (k + 1/2) / 2^B for k = 0 ... 2^B - 1. The chance of going up
is then within 2^-(B+1) of x - floor(x), and an integer always stays.
"""

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.seeding import derive_seed

NOISE_BITS = 14
"""Bits of a number: the mean of a rounded one is within 2^-15 of it.

u and the 8 bits of a code before the point fit into the 24 of a float32.
"""

_UNUSED_BITS = 16 - NOISE_BITS
_PER_DRAW = 4  # 16-bit numbers in one draw of 64


class RoundingNoise:
    """A stream of u + offset; `seed` decides all of it."""

    def __init__(self, seed: int, offset: float) -> None:
        self._bits = np.random.SFC64(derive_seed(seed, "rounding"))
        self._offset = np.float32(offset + 2.0 ** -(NOISE_BITS + 1))

    def fill(self, out: NDArray[np.float32]) -> None:
        """Write the next numbers."""
        draws: NDArray[np.uint64] = self._bits.random_raw(-(-out.size // _PER_DRAW))
        integers = draws.astype("<u8", copy=False).view("<u2")[: out.size]
        integers >>= _UNUSED_BITS
        np.copyto(out, integers.reshape(out.shape))
        out *= np.float32(2.0**-NOISE_BITS)
        out += self._offset
