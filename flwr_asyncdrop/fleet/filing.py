"""Keeps the idle devices filed by rank while devices come, go, work and fail."""

import heapq
import math
from collections.abc import Callable, Collection, Sequence

from flwr_asyncdrop.fleet.idle import FiledDevices, Ints


class Filing:
    """The idle devices of a fleet, but those that are taken or have failed lately.

    Whoever changes anything about a device puts it into `changed`, or calls `forget`
    for all of them; only what has changed since the last look is looked at.

    Parameters
    ----------
    free_from : callable
        Returns from when on a device can have a task, by its index and the time;
        infinity for never. What `FiledDevices.there` says is not its concern.
    rank : callable
        Returns the rank of a device that can have one.
    ranks : callable
        Returns the ranks of all devices, -1 for those that cannot have a task and are
        not in the collection of others to look at, which it returns as well.
    """

    def __init__(
        self,
        num_ranks: int,
        free_from: Callable[[int, float], float],
        rank: Callable[[int], int],
        ranks: Callable[[], tuple[Ints, Collection[int]]],
    ) -> None:
        self.changed: set[int] = set()
        self._num_ranks = num_ranks
        self._free_from = free_from
        self._rank = rank
        self._ranks = ranks
        self._filed: FiledDevices | None = None
        self._time = -math.inf
        self._taken: set[int] = set()
        self._lost: list[int] = []
        self._is_lost: set[int] = set()
        self._releases: list[tuple[float, int]] = []

    def forget(self) -> None:
        """File all devices again at the next look."""
        self._filed = None

    def at(
        self, time: float, taken: Collection[int], lost: Sequence[int]
    ) -> FiledDevices:
        """Return the idle devices at `time`, but those `taken` or `lost`."""
        taken = set(taken)
        self.changed |= taken ^ self._taken
        self._taken = taken
        self._note_lost(lost)
        while self._releases and self._releases[0][0] <= time:
            self.changed.add(heapq.heappop(self._releases)[1])
        filed = self._filed
        if filed is None or time < self._time:
            ranks, others = self._ranks()
            filed = self._filed = FiledDevices(self._num_ranks, ranks)
            self._releases = []
            self.changed = {*taken, *self._is_lost, *others}
        for device in self.changed:
            filed.file(device, self._rank_at(device, time))
        self.changed.clear()
        self._time = time
        return filed

    def _rank_at(self, device: int, time: float) -> int | None:
        if device in self._taken or device in self._is_lost:
            return None
        free_from = self._free_from(device, time)
        if free_from == time:
            return self._rank(device)
        if free_from < math.inf:
            heapq.heappush(self._releases, (free_from, device))
        return None

    def _note_lost(self, lost: Sequence[int]) -> None:
        """Take over a list that grows, and is cleared now and then."""
        known, lost = len(self._lost), list(lost)
        if self._lost == lost:
            return
        if self._lost != lost[:known]:
            self.changed |= self._is_lost
            self._lost, self._is_lost, known = [], set(), 0
        fresh = lost[known:]
        self._lost.extend(fresh)
        self._is_lost.update(fresh)
        self.changed.update(fresh)
