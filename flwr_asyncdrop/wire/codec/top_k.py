"""Only the largest numbers of a tensor, with the places where they are."""

from dataclasses import dataclass, field
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.parameters import (
    Range,
    check_parameters,
    in_interval,
    parameter,
)
from flwr_asyncdrop.wire.codec.blocks import Blocks
from flwr_asyncdrop.wire.codec.positions import (
    positions_sizes,
    read_positions,
    write_positions,
)
from flwr_asyncdrop.wire.codec.rotated import Rotated
from flwr_asyncdrop.wire.codec.scheme import Floats, Scheme

_MAGNITUDE = np.uint32(0x7FFFFFFF)  # the bits of a float32 without its sign


@dataclass(frozen=True)
class TopK(Scheme):
    """The share of the numbers with the largest magnitudes, in another scheme.

    All others are read as 0. Of numbers that are as large the first ones are kept. At
    least one is kept. Unbiased is only what the other scheme does to those kept: error
    feedback has to make up for the rest.
    """

    share: float = parameter(
        0.1, "share of the numbers that are kept", in_interval("[1e-06, 1)")
    )
    inner: Blocks | Rotated = field(default=Blocks(4))

    def __post_init__(self) -> None:
        check_parameters(self)
        inner_range = Range(
            lambda v: isinstance(v, Blocks | Rotated), "Blocks or Rotated"
        )
        inner_range.check("inner", self.inner)

    @property
    def name(self) -> str:
        """E.g. ``"top10%+q4"``."""
        percent = (Decimal(repr(float(self.share))) * 100).normalize()
        return f"top{percent:f}%+{self.inner.name}"

    @property
    def keeps_zeros(self) -> bool:
        """Whether the other scheme does, as a zero may be among those kept."""
        return self.inner.keeps_zeros

    def kept(self, count: int) -> int:
        """Return how many of `count` numbers are kept."""
        return min(count, max(1, round(self.share * count)))

    def payload_sizes(self, count: int) -> range:
        """Return the sizes of the positions, and that of the numbers behind them."""
        kept = self.kept(count)
        (inner,) = self.inner.payload_sizes(kept)
        sizes = positions_sizes(count, kept)
        return range(sizes.start + inner, sizes.stop + inner)

    def pack(self, values: Floats, seed: int, *, unbiased: bool) -> bytes:
        """Return the positions, then the other scheme's payload."""
        positions = largest(values, self.kept(values.size))
        inner = self.inner.pack(values[positions], seed, unbiased=unbiased)
        return write_positions(positions, values.size) + inner

    def unpack(self, payload: bytes, count: int, seed: int) -> Floats:
        """Read the positions, and the numbers that are there."""
        kept = self.kept(count)
        (inner,) = self.inner.payload_sizes(kept)
        split = len(payload) - inner
        positions = read_positions(payload[:split], count, kept)
        values = np.zeros(count, np.float32)
        values[positions] = self.inner.unpack(payload[split:], kept, seed)
        return values


def largest(values: Floats, count: int) -> NDArray[np.int64]:
    """Return the ascending positions of the `count` largest magnitudes.

    Of numbers that are as large the first ones are taken. NaN and infinity count as
    larger than all others.
    """
    if count == 0:
        return np.zeros(0, np.int64)
    # Magnitudes are ordered as their bits.
    bits = values.view(np.uint32) & _MAGNITUDE
    bound = np.partition(bits, bits.size - count)[bits.size - count]
    above = np.flatnonzero(bits > bound)
    ties = np.flatnonzero(bits == bound)[: count - above.size]
    return np.sort(np.concatenate((above, ties)))
