"""Devices in the order of their speed, kept while single speeds change."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

_BLOCK = 500
_FEW = 4  # devices a rank; with fewer, almost every rank changes with their number


class SpeedOrder:
    """Devices by ``(slowness, index)``, fastest first.

    They are in blocks, so that a change moves a block's entries and not all.
    """

    def __init__(self, slowness: Iterable[tuple[float, int]]) -> None:
        order = sorted(slowness)
        starts = range(0, len(order), _BLOCK)
        self._blocks = [order[start : start + _BLOCK] for start in starts] or [[]]
        self._lasts = [block[-1] for block in self._blocks if block]
        self._len = len(order)

    def __len__(self) -> int:
        return self._len

    def __getitem__(self, place: int) -> int:
        return self._entry(place)[1]

    def add(self, device: int, slowness: float) -> int:
        """Add a device; return its place."""
        entry = (slowness, device)
        at, within, place = self._find(entry)
        block = self._blocks[at]
        block.insert(within, entry)
        self._len += 1
        if len(block) > 2 * _BLOCK:
            self._blocks[at : at + 1] = block[:_BLOCK], block[_BLOCK:]
            self._lasts[at : at + 1] = block[_BLOCK - 1], block[-1]
        else:
            self._lasts[at : at + 1] = [block[-1]]
        return place

    def remove(self, device: int, slowness: float) -> int:
        """Take a device away, which is there; return where it was."""
        at, within, place = self._find((slowness, device))
        block = self._blocks[at]
        del block[within]
        self._len -= 1
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._lasts[at]
            if len(self._blocks) > 1:
                del self._blocks[at]
        return place

    def place(self, device: int, slowness: float) -> int:
        """Return how many devices come before this one, which is there."""
        return self._find((slowness, device))[2]

    def _find(self, entry: tuple[float, int]) -> tuple[int, int, int]:
        """Return where an entry is, or belongs: block, place within it, and place."""
        at = min(bisect_left(self._lasts, entry), len(self._blocks) - 1)
        within = bisect_left(self._blocks[at], entry)
        return at, within, sum(map(len, self._blocks[:at])) + within

    def _entry(self, place: int) -> tuple[float, int]:
        for block in self._blocks:
            if place < len(block):
                return block[place]
            place -= len(block)
        raise IndexError(place)

    @property
    def fastest(self) -> float:
        """The slowness of the fastest device."""
        return self._entry(0)[0]

    @property
    def median(self) -> float:
        """The median slowness of those for which it is finite, as NumPy has it."""
        known = self._find((math.inf, -1))[2]
        upper = self._entry(known // 2)[0]
        return upper if known % 2 else (self._entry(known // 2 - 1)[0] + upper) / 2


class Ranking:
    """Ranks of devices: that at place ``p`` of ``N`` has rank ``p * num_ranks // N``.

    A change returns the devices whose ranks may have changed; None for all.
    """

    def __init__(self, num_ranks: int, slowness: Iterable[tuple[float, int]]) -> None:
        self._num_ranks = num_ranks
        self._order = SpeedOrder(slowness)

    def rank(self, device: int, slowness: float) -> int:
        """Return the rank of a device that is in it; 0 is the fastest."""
        place = self._order.place(device, slowness)
        return place * self._num_ranks // len(self._order)

    def move(self, device: int, before: float, after: float) -> list[int]:
        """Note another speed of a device."""
        size = len(self._order)
        places = self._order.remove(device, before), self._order.add(device, after)
        old, new = (place * self._num_ranks // size for place in places)
        return [device, *self._around(min(old, new) + 1, max(old, new) + 1)]

    def join(self, device: int, slowness: float) -> list[int] | None:
        """Add a device."""
        self._order.add(device, slowness)
        return self._with_all_borders(device)

    def leave(self, device: int, slowness: float) -> list[int] | None:
        """Take a device away."""
        self._order.remove(device, slowness)
        return self._with_all_borders(device)

    def _with_all_borders(self, device: int) -> list[int] | None:
        if len(self._order) < _FEW * self._num_ranks:
            return None
        return [device, *self._around(1, self._num_ranks)]

    def _around(self, first: int, end: int) -> Iterator[int]:
        """Yield the devices on both sides of where each of these ranks begins."""
        size = len(self._order)
        for rank in range(first, end):
            border = -(-rank * size // self._num_ranks)
            for place in (border - 1, border):
                if 0 <= place < size:
                    yield self._order[place]


class Speeds:
    """How slow each device is, and the ranks of those that are present."""

    def __init__(
        self, num_ranks: int, slowness: Sequence[float], present: Iterable[int]
    ) -> None:
        self._slowness = list(slowness)
        entries = [(seconds, device) for device, seconds in enumerate(self._slowness)]
        self._present = set(present)
        self._all = SpeedOrder(entries)
        self._ranking = Ranking(
            num_ranks, (entries[device] for device in self._present)
        )
        self._num_ranks = num_ranks

    def __getitem__(self, device: int) -> float:
        return self._slowness[device]

    @property
    def fastest(self) -> float:
        """The slowness of the fastest device that was ever seen."""
        return self._all.fastest

    @property
    def median(self) -> float:
        """The median slowness of all devices for which it is known, at least one."""
        return self._all.median

    def rank(self, device: int) -> int:
        """Return the rank of a device; one that is away has the last."""
        if device not in self._present:
            return self._num_ranks - 1
        return self._ranking.rank(device, self._slowness[device])

    def set(self, device: int, slowness: float) -> list[int]:
        """Note a speed; return the devices whose ranks may have changed."""
        before = self._slowness[device]
        if slowness == before:
            return []
        self._slowness[device] = slowness
        self._all.remove(device, before)
        self._all.add(device, slowness)
        if device not in self._present:
            return []
        return self._ranking.move(device, before, slowness)

    def add(self, slowness: float) -> None:
        """Add a device, the next one, which is not present yet."""
        self._all.add(len(self._slowness), slowness)
        self._slowness.append(slowness)

    def join(self, device: int) -> list[int] | None:
        """Note that a device is present; None if all ranks may have changed."""
        self._present.add(device)
        return self._ranking.join(device, self._slowness[device])

    def leave(self, device: int) -> list[int] | None:
        """Note that a device is away; None if all ranks may have changed."""
        self._present.remove(device)
        return self._ranking.leave(device, self._slowness[device])
