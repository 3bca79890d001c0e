"""How the numbers of one tensor become bytes, and numbers again."""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.wire.codec.squeeze import OVERHEAD, squeeze, unsqueeze

Floats = NDArray[np.float32]


class Scheme(ABC):
    """A coder of flat float32 tensors.

    A subclass turns numbers into a payload, whose size follows from their count, and
    back. Around the payload is zstd, where that is smaller.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The spec of the scheme, e.g. ``"q4"``: ``scheme(name)`` equals it."""

    @property
    def keeps_zeros(self) -> bool:
        """Whether a 0 is read as 0, whatever numbers are beside it."""
        return True

    @abstractmethod
    def pack(self, values: Floats, seed: int, *, unbiased: bool) -> bytes:
        """Return the payload of `values`; see `encode`."""

    @abstractmethod
    def unpack(self, payload: bytes, count: int, seed: int) -> Floats:
        """Return the numbers of a payload whose size is one of `payload_sizes`."""

    @abstractmethod
    def payload_sizes(self, count: int) -> range:
        """Return the sizes in bytes that a payload of `count` numbers can have."""

    def encode(self, values: Floats, seed: int, *, unbiased: bool) -> bytes:
        """Code numbers.

        Parameters
        ----------
        values : ndarray of float32, shape (count,)
            Contiguous and finite; ValueError if they are not.
        seed : int
            At least 0. All random numbers derive from it: the same seed, the same
            bytes. Tensors of one message need seeds of their own, or their errors are
            alike.
        unbiased : bool
            Whether the mean of what `decode` returns, over all seeds, is `values`.
            Else each number goes to the nearest that there is, which has the smaller
            error.
        """
        if (
            values.dtype != np.float32
            or values.ndim != 1
            or not values.flags.c_contiguous
        ):
            raise ValueError(
                f"values are {values.dtype} of shape {values.shape}, not flat and "
                "contiguous float32"
            )
        return squeeze(self.pack(values, seed, unbiased=unbiased))

    def decode(self, data: bytes, count: int, seed: int) -> Floats:
        """Read what `encode` wrote of `count` numbers with the same seed.

        Returns
        -------
        ndarray of float32, shape (count,)
            Finite; it owns its memory.

        Raises
        ------
        ValueError
            With the reason in a few words, if the bytes are not in the form that
            `encode` writes. No more memory is spent than `count` implies.
        """
        return self.unpack(unsqueeze(data, self.payload_sizes(count)), count, seed)

    def most_bytes(self, count: int) -> int:
        """Return the most bytes that `encode` writes for `count` numbers."""
        return OVERHEAD + self.payload_sizes(count)[-1]
