"""The idle devices of each rank: counted, and the k-th of them, without a look at all.

A fleet keeps `FiledDevices` up to date device by device. `ListedDevices` says the same
of plain arrays: the rule, and what a fleet falls back on.
"""

from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_NOWHERE = -1


class IdleDevices(ABC):
    """The devices that can have a task now, ascending within each rank."""

    num_ranks: int

    @abstractmethod
    def count(self, rank: int) -> int:
        """Return how many devices of a rank are idle."""

    @abstractmethod
    def pick(self, rank: int, number: int) -> int:
        """Return the idle device of a rank before which there are `number` others."""


class ListedDevices(IdleDevices):
    """Idle devices from the list of them, and the ranks of all devices."""

    def __init__(self, idle: Ints, ranks: Ints, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        self.idle = idle
        self.ranks = ranks

    def count(self, rank: int) -> int:
        """Return how many devices of a rank are idle."""
        return int(np.count_nonzero(self.ranks[self.idle] == rank))

    def pick(self, rank: int, number: int) -> int:
        """Return the idle device of a rank before which there are `number` others."""
        return int(self.idle[self.ranks[self.idle] == rank][number])


class FiledDevices(IdleDevices):
    """Idle devices, each in the sorted array of its rank.

    `there`, if it is given, has a number for each device, and those with 0 are not
    idle: simulated devices come and go too often to be filed each time.
    """

    def __init__(self, num_ranks: int, ranks: Ints) -> None:
        """File all devices; one that is not idle has the rank -1."""
        self.num_ranks = num_ranks
        self.there: NDArray[np.int8] | None = None
        self._filed = array("q", ranks.tobytes())
        order = np.argsort(ranks, kind="stable")
        ends = np.searchsorted(ranks[order], np.arange(num_ranks + 1))
        self._by_rank = [
            array("q", order[start:end].tobytes()) for start, end in pairwise(ends)
        ]

    def file(self, device: int, rank: int | None) -> None:
        """Note the rank of a device that is idle, or None for one that is not."""
        new = _NOWHERE if rank is None else rank
        missing = device + 1 - len(self._filed)
        if missing > 0:
            self._filed.extend([_NOWHERE] * missing)
        old = self._filed[device]
        if old == new:
            return
        self._filed[device] = new
        if old != _NOWHERE:
            devices = self._by_rank[old]
            del devices[bisect_left(devices, device)]
        if new != _NOWHERE:
            devices = self._by_rank[new]
            devices.insert(bisect_left(devices, device), device)

    def count(self, rank: int) -> int:
        """Return how many devices of a rank are idle."""
        if self.there is None or not self._by_rank[rank]:
            return len(self._by_rank[rank])
        return int(np.count_nonzero(self.there[self._devices(rank)]))

    def pick(self, rank: int, number: int) -> int:
        """Return the idle device of a rank before which there are `number` others."""
        if self.there is None:
            return self._by_rank[rank][number]
        devices = self._devices(rank)
        return int(devices[np.flatnonzero(self.there[devices])[number]])

    def _devices(self, rank: int) -> Ints:
        # A view: it must be gone before the array grows again.
        return np.frombuffer(self._by_rank[rank], dtype=np.int64)
