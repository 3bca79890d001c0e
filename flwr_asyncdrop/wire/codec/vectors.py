"""How a flat tensor is dealt into vectors that are rotated each.

A tensor is cut into chunks that fit into a core's cache. The numbers of a chunk are
the rows of a matrix, one after the other, and zeros follow on the last one: each column
is a vector.
"""

from collections.abc import Iterator
from dataclasses import dataclass

_CHUNK = 1 << 16
_LEAST_VECTORS = 16  # of a chunk, unless they would be short
_SHORTEST, _LONGEST = 128, 2048  # numbers of a vector


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some neighbours of a tensor."""

    start: int
    stop: int
    shape: tuple[int, int]
    """Numbers of a vector, a power of two, and how many vectors."""

    @property
    def count(self) -> int:
        """Numbers of the tensor."""
        return self.stop - self.start

    @property
    def padded(self) -> int:
        """Numbers of all vectors."""
        return self.shape[0] * self.shape[1]


def chunks(count: int) -> Iterator[Chunk]:
    """Return the chunks of a tensor of `count` numbers."""
    for start in range(0, count, _CHUNK):
        stop = min(start + _CHUNK, count)
        yield Chunk(start, stop, _shape(stop - start))


def totals(count: int) -> tuple[int, int]:
    """Return the number of vectors of all chunks, and of the numbers in them."""
    whole, rest = divmod(count, _CHUNK)
    _, each = _shape(_CHUNK)
    size, more = _shape(rest)
    return whole * each + more, whole * _CHUNK + size * more


def _shape(count: int) -> tuple[int, int]:
    size = 1 << (max(count // _LEAST_VECTORS, 1).bit_length() - 1)
    size = min(max(size, _SHORTEST), _LONGEST)
    return size, -(-count // size)
