"""How fast the devices of a fleet are, and their ranks."""

import math
from collections.abc import Sequence, Set

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.capacity import Capacity
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.speed_order import Speeds

_MOST_TIMES_FASTER = 10.0
_MANY = 200  # devices that come or go: all are put in order again


class RankedDevices:
    """The speeds of devices, by index, and what follows from them.

    `ranks` and `slowness` are the rules, and look at every device. `rank` and
    `capability` say the same of one device, from an order that is kept up to date.
    While a device declares its speed, each report changes the order of many, and they
    follow the rules.
    """

    def __init__(
        self,
        num_ranks: int,
        profiles: Sequence[DeviceProfile] | None,
        model_bytes: tuple[int, int],
    ) -> None:
        self.num_ranks = num_ranks
        self.profiles = profiles
        # Of the full model as it travels, coded if there is a codec: down and up.
        self.model_bytes = model_bytes
        # Of a task with the full model, from dispatch to reply; infinity if unknown.
        self.seconds: list[float] = []
        # Of real devices that report.
        self.capacities: dict[int, Capacity] = {}
        self._present: set[int] = set()
        self._ranks: NDArray[np.int64] | None = None
        self._slowness: NDArray[np.float64] | None = None
        self._speeds: Speeds | None = None
        self._declared: set[int] = set()  # devices that declare their speed

    @property
    def present(self) -> Set[int]:
        """The devices that are connected."""
        return self._present

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The rank of every device; 0 is the fastest, and absent ones have the last."""
        if self._ranks is None:
            away = np.ones(len(self.seconds), dtype=bool)
            away[list(self._present)] = False
            order = np.lexsort((self.slowness, away))
            places = np.empty(len(order), dtype=np.int64)
            places[order] = np.arange(len(order))
            ranks = places * self.num_ranks // max(len(self._present), 1)
            self._ranks = np.minimum(ranks, self.num_ranks - 1)
        return self._ranks

    def rank(self, device: int) -> int:
        """Return the rank of a device, as `ranks` has it."""
        if self._declared:
            return int(self.ranks[device])
        return self._known_speeds().rank(device)

    @property
    def slowness(self) -> NDArray[np.float64]:
        """What ranks go by: seconds of a task with the full model, by device.

        Local steps and transfers, if a device reports them; else all from dispatch to
        reply; infinity if nothing is known. A declared speed replaces what is measured:
        it counts as many seconds as declared devices that were measured take for it, in
        the median.
        """
        if self._slowness is None:
            slowness = np.array(self.seconds)
            declared: dict[int, float] = {}
            for device, known in self.capacities.items():
                slowness[device] = self._seconds_of(device)
                if known.declared:
                    declared[device] = known.declared
            if declared:
                devices, speeds = list(declared), np.array(list(declared.values()))
                work = slowness[devices] * speeds
                work = work[np.isfinite(work)]
                slowness[devices] = (np.median(work) if len(work) else 1.0) / speeds
            self._slowness = slowness
        return self._slowness

    def _seconds_of(self, device: int) -> float:
        """Return what a device has been measured to take, or infinity."""
        known = self.capacities.get(device)
        if known is None or known.train_seconds == math.inf:
            return self.seconds[device]
        return known.task_seconds(*self.model_bytes)

    def _known_speeds(self) -> Speeds:
        if self._speeds is None:
            slowness = self.slowness.tolist()
            self._speeds = Speeds(self.num_ranks, slowness, self._present)
        return self._speeds

    def _note_speed(self, device: int) -> None:
        """Note that a device may have another speed."""
        self._ranks = self._slowness = None
        if self._declared:
            self._forget_order()
        elif self._speeds is not None:
            self._note_changed(*self._speeds.set(device, self._seconds_of(device)))

    def capability(self, device: int) -> float:
        """Return a device's speed over that of the fastest; 1 while it is unknown.

        Real devices report their speed: one that claims to be more than ten times as
        fast as the median counts as ten times as fast, or it would make nothing of all
        others.
        """
        slowness: Speeds | NDArray[np.float64]
        if self._declared:
            slowness = self.slowness
            fastest = slowness.min()
        else:
            slowness = self._known_speeds()
            fastest = slowness.fastest
        seconds = slowness[device]
        if seconds in (0, math.inf):  # 0: too fast for the timer
            return 1.0
        if self.profiles is None:
            if isinstance(slowness, Speeds):
                usual = slowness.median
            else:
                usual = np.median(slowness[np.isfinite(slowness)])
            fastest = max(fastest, usual / _MOST_TIMES_FASTER)
        return 1.0 if seconds <= fastest else float(fastest / seconds)

    def times_faster(self, device: int) -> float:
        """Return how many times as long the median device takes as this one.

        From dispatch to reply, as the server sees it, whatever devices report. 1 while
        nothing is known of it.
        """
        seconds = self.seconds[device]
        if seconds in (0, math.inf):
            return 1.0
        if self.profiles is not None:  # the same, and kept in order
            return self._known_speeds().median / seconds
        known = np.array(self.seconds)
        return float(np.median(known[np.isfinite(known)]) / seconds)

    def _add_device(self, seconds: float) -> None:
        """Add a device, the next one, which is not present yet."""
        self.seconds.append(seconds)
        self._ranks = self._slowness = None
        if self._speeds is not None:
            self._speeds.add(seconds)

    def _note_present(self, present: set[int]) -> None:
        came, left = present - self._present, self._present - present
        self._present = present
        if not came and not left:
            return
        self._ranks = None
        if self._speeds is None or len(came) + len(left) > _MANY:
            self._forget_order()
            return
        changes = [self._speeds.join(device) for device in came]
        changes += [self._speeds.leave(device) for device in left]
        if None in changes:
            self._forget_order()
            return
        for devices in changes:
            self._note_changed(*(devices or ()))

    def _note_declared(self, device: int) -> None:
        """Note whether a device that has reported declares its speed."""
        was_declared = device in self._declared
        if self.capacities[device].declared:
            self._declared.add(device)
        else:
            self._declared.discard(device)
        if was_declared or device in self._declared:
            self._forget_order()

    def _forget_speeds(self) -> None:
        """Forget what followed from other `seconds` and `capacities`."""
        self._declared = {d for d, known in self.capacities.items() if known.declared}
        self._forget_order()

    def _note_changed(self, *devices: int) -> None:
        """Note that something about devices has changed; their ranks, for one."""

    def _forget_order(self) -> None:
        """Forget all ranks: those of many devices have changed."""
        self._ranks = self._slowness = self._speeds = None
