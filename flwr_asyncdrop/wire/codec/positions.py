"""Which numbers of a tensor are kept: one bit each, or gaps between them.

Gaps are written as bytes: 255 stands for 255 numbers that are left out and says that
the gap goes on, a smaller byte ends it. The shorter of the two forms is written.
"""

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]

_BITMAP, _GAPS = b"\0", b"\1"
_FULL = 255


def positions_sizes(count: int, kept: int) -> range:
    """Return the sizes in bytes that `kept` positions among `count` can have."""
    bitmap = _bitmap_bytes(count)
    least, most = kept, kept + (count - kept) // _FULL
    return range(1 + min(least, bitmap), 2 + min(most, bitmap))


def write_positions(positions: Positions, count: int) -> bytes:
    """Write ascending positions among `count` numbers."""
    gaps = np.diff(positions, prepend=-1) - 1
    ends = np.cumsum(gaps // _FULL + 1)  # of gaps, among the bytes
    size = int(ends[-1]) if ends.size else 0
    if size < _bitmap_bytes(count):
        data = np.full(size, _FULL, np.uint8)
        data[ends - 1] = gaps % _FULL
        return _GAPS + data.tobytes()
    kept = np.zeros(count, np.bool_)
    kept[positions] = True
    return _BITMAP + np.packbits(kept, bitorder="little").tobytes()


def read_positions(data: bytes, count: int, kept: int) -> Positions:
    """Read what `write_positions` wrote of `kept` positions, else ValueError."""
    form, body = data[:1], np.frombuffer(data[1:], np.uint8)
    if form == _BITMAP and body.size == _bitmap_bytes(count):
        positions = np.flatnonzero(np.unpackbits(body, bitorder="little"))
    elif form == _GAPS and not (body.size and body[-1] == _FULL):
        ends = np.flatnonzero(body < _FULL)
        positions = np.cumsum(body, dtype=np.int64)[ends] + np.arange(ends.size)
    else:
        raise ValueError(f"positions in {body.size} bytes have no known form")
    if positions.size != kept or (kept and positions[-1] >= count):
        raise ValueError(f"they are not {kept} positions among {count} numbers")
    gaps = np.diff(positions, prepend=-1) - 1
    shorter = int((gaps // _FULL + 1).sum()) < _bitmap_bytes(count)
    if shorter != (form == _GAPS):
        raise ValueError("positions are not in the shorter form")
    return positions


def _bitmap_bytes(count: int) -> int:
    return -(-count // 8)
