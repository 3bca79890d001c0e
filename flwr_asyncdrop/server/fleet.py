"""The devices seen so far: who they are, how fast, and who trains next."""

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.simulation.profiles import DeviceProfile

__all__ = ["Fleet", "Selection", "Stratified", "Uniform"]

_SMOOTHING = 0.3


class Fleet:
    """Devices in the order in which they were first seen, ranked by speed.

    Parameters
    ----------
    num_ranks : int
        Number of speed ranks ``S``. The device at place ``p`` of ``N``, fastest
        first, has rank ``p * S // N``; equal speeds rank by index.
    profiles : sequence of DeviceProfile, optional
        The speeds of a simulated fleet, by device index. Without them the speed is
        measured from the tasks, and a device that has done none yet ranks last.

    Attributes
    ----------
    node_ids : list of int
        The Flower node of every device.
    failures_in_a_row : dict of int to int
        Tasks that a device has failed since its last success; absent if none.
    released_at : dict of int to float
        When a device in quarantine gets tasks again, in seconds on the loop's clock;
        absent for the others.
    """

    def __init__(
        self, num_ranks: int, profiles: Sequence[DeviceProfile] | None = None
    ) -> None:
        self.num_ranks = num_ranks
        self.profiles = profiles
        self.node_ids: list[int] = []
        self.failures_in_a_row: dict[int, int] = {}
        self.released_at: dict[int, float] = {}
        self._seconds: list[float] = []
        self._present: set[int] = set()
        self._ranks: NDArray[np.int64] | None = None
        self._fastest: float | None = None
        self._come_and_go = any(p.availability is not None for p in profiles or ())

    def __len__(self) -> int:
        """Return the number of devices ever seen."""
        return len(self.node_ids)

    def refresh(self, node_ids: Iterable[int]) -> None:
        """Note which nodes are connected now; new ones join the fleet, by id.

        A simulated fleet has as many devices as profiles, and ignores other nodes.
        """
        connected = set(node_ids)
        for node_id in sorted(connected.difference(self.node_ids)):
            index = len(self.node_ids)
            if self.profiles is None:
                self._seconds.append(np.inf)
            elif index < len(self.profiles):
                self._seconds.append(self.profiles[index].seconds_per_task)
            else:
                break
            self.node_ids.append(node_id)
            self._ranks = self._fastest = None
        self._present = {
            index for index, node in enumerate(self.node_ids) if node in connected
        }

    def observe(self, device: int, seconds: float, compute: float) -> None:
        """Learn the speed of a real device from a task; simulated ones keep theirs.

        Parameters
        ----------
        device : int
            Index of the device.
        seconds : float
            Seconds from dispatch to reply.
        compute : float
            FLOPs of the task over those of the full model.
        """
        if self.profiles is not None:
            return
        full, known = seconds / compute, self._seconds[device]
        fresh = known == np.inf
        self._seconds[device] = full if fresh else known + _SMOOTHING * (full - known)
        self._ranks = self._fastest = None

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The rank of every device, shape ``(len(self),)``; 0 is the fastest."""
        if self._ranks is None:
            order = np.argsort(np.array(self._seconds), kind="stable")
            places = np.empty(len(order), dtype=np.int64)
            places[order] = np.arange(len(order))
            self._ranks = places * self.num_ranks // max(len(order), 1)
        return self._ranks

    def capability(self, device: int) -> float:
        """Return a device's speed over that of the fastest; 1 while it is unknown."""
        seconds = self._seconds[device]
        if seconds in (0, np.inf):  # 0: too fast for the timer
            return 1.0
        if self._fastest is None:
            self._fastest = min(self._seconds)
        return self._fastest / seconds

    def idle(
        self, busy: Collection[int], time: float | None = None
    ) -> NDArray[np.int64]:
        """Return the connected devices that are not in `busy`, ascending.

        Parameters
        ----------
        busy : collection of int
            Those that are taken.
        time : float, optional
            Seconds on a virtual clock at which a simulated device must be there, by
            its profile; None does not ask.
        """
        free = sorted(self._present.difference(busy))
        if time is not None and self._come_and_go:
            free = [device for device in free if self._there_from(device, time) == time]
        return np.array(free, dtype=np.int64)

    def next_return(self, busy: Collection[int], time: float) -> float:
        """Return when the first device that is not in `busy` is there, from `time` on.

        Infinity if there is none that comes back.
        """
        if not self._come_and_go:
            return math.inf
        free = self._present.difference(busy)
        return min(
            (self._there_from(device, time) for device in free), default=math.inf
        )

    def _there_from(self, device: int, time: float) -> float:
        availability = None
        if self.profiles is not None:
            availability = self.profiles[device].availability
        return time if availability is None else availability.earliest(time)


class Selection(ABC):
    """Chooses which idle device trains next."""

    @abstractmethod
    def choose(
        self,
        idle: NDArray[np.int64],
        ranks: NDArray[np.int64],
        busy_ranks: Iterable[int],
        generator: np.random.Generator,
    ) -> int:
        """Choose a device.

        Parameters
        ----------
        idle : array of int, shape (n,)
            The devices to choose from, at least one.
        ranks : array of int, shape (num_devices,)
            The rank of every device.
        busy_ranks : iterable of int
            The ranks of the tasks in flight.
        generator : numpy.random.Generator
            Source of randomness.
        """


class Stratified(Selection):
    """One device of each rank at any moment, as the paper's script has it.

    The rank with the fewest tasks in flight is next, the fastest first; within the
    rank every idle device is equally likely.
    """

    def choose(
        self,
        idle: NDArray[np.int64],
        ranks: NDArray[np.int64],
        busy_ranks: Iterable[int],
        generator: np.random.Generator,
    ) -> int:
        """Choose an idle device of the rank that is training least."""
        in_flight = Counter(busy_ranks)
        idle_ranks = ranks[idle]
        rank = min(np.unique(idle_ranks).tolist(), key=lambda r: (in_flight[r], r))
        return int(generator.choice(idle[idle_ranks == rank]))


class Uniform(Selection):
    """Every idle device is equally likely."""

    def choose(
        self,
        idle: NDArray[np.int64],
        ranks: NDArray[np.int64],
        busy_ranks: Iterable[int],
        generator: np.random.Generator,
    ) -> int:
        """Choose any idle device."""
        return int(generator.choice(idle))
