"""How fast the devices of a fleet are beside each other, and their ranks."""

import math
from collections.abc import Collection, Set

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.devices import Devices
from flwr_asyncdrop.fleet.speed_order import Speeds

_MOST_TIMES_FASTER = 10.0
_MANY = 200  # devices that come or go: all are put in order again

Changed = Collection[int] | None
"""The devices whose ranks may have changed; None for all."""


class RelativeSpeeds:
    """The ranks of devices that are present, and how fast each is beside the others.

    `ranks` and `slowness` are the rules, and look at every device. `rank` and
    `capability` say the same of one device, from an order that is kept up to date.
    While a device declares its speed, each report changes the order of many, and they
    follow the rules.
    """

    def __init__(self, num_ranks: int, devices: Devices) -> None:
        self.num_ranks = num_ranks
        self._devices = devices
        self._present: set[int] = set()
        self._declaring: set[int] = set()  # devices that declare their speed
        self._ranks: NDArray[np.int64] | None = None
        self._slowness: NDArray[np.float64] | None = None
        self._kept: Speeds | None = None

    @property
    def present(self) -> Set[int]:
        """The devices that are connected."""
        return self._present

    @property
    def declared(self) -> bool:
        """Whether a device declares its speed, so that one changes those of others."""
        return bool(self._declaring)

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The rank of every device; 0 is the fastest, and absent ones have the last."""
        if self._ranks is None:
            away = np.ones(len(self._devices), dtype=bool)
            away[list(self._present)] = False
            order = np.lexsort((self.slowness, away))
            places = np.empty(len(order), dtype=np.int64)
            places[order] = np.arange(len(order))
            ranks = places * self.num_ranks // max(len(self._present), 1)
            self._ranks = np.minimum(ranks, self.num_ranks - 1)
        return self._ranks

    def rank(self, device: int) -> int:
        """Return the rank of a device, as `ranks` has it."""
        if self._declaring:
            return int(self.ranks[device])
        return self._in_order().rank(device)

    @property
    def slowness(self) -> NDArray[np.float64]:
        """What ranks go by: seconds of a task with the full model, by device.

        Infinity if nothing is known. Of simulated devices they are those of the local
        steps, without transfers. A declared speed replaces what is measured: it
        counts as many seconds as declared devices that were measured take for it, in
        the median.
        """
        if self._slowness is None:
            known = self._devices
            slowness = np.array(known.seconds)
            for device in known.capacities:
                slowness[device] = known.full_seconds(device)
            if self._declaring:
                declaring = sorted(self._declaring)
                speeds = np.array([known.declared(device) for device in declaring])
                work = slowness[declaring] * speeds
                work = work[np.isfinite(work)]
                slowness[declaring] = (np.median(work) if len(work) else 1.0) / speeds
            self._slowness = slowness
        return self._slowness

    def capability(self, device: int) -> float:
        """Return a device's speed over that of the fastest; 1 while it is unknown.

        Real devices report their speed: one that claims to be more than ten times as
        fast as the median counts as ten times as fast, or it would make nothing of all
        others.
        """
        slowness: Speeds | NDArray[np.float64]
        if self._declaring:
            slowness = self.slowness
            fastest = slowness.min()
        else:
            slowness = self._in_order()
            fastest = slowness.fastest
        seconds = slowness[device]
        if seconds in (0, math.inf):  # 0: too fast for the timer
            return 1.0
        if self._devices.profiles is None:
            if isinstance(slowness, Speeds):
                usual = slowness.median
            else:
                usual = np.median(slowness[np.isfinite(slowness)])
            fastest = max(fastest, usual / _MOST_TIMES_FASTER)
        return 1.0 if seconds <= fastest else float(fastest / seconds)

    def times_faster(self, device: int) -> float:
        """Return how many times as long the median device takes as this one.

        From dispatch to reply, as the server sees it, whatever devices report; of a
        simulated one, by its local steps. 1 while nothing is known of it.
        """
        seconds = self._devices.seconds[device]
        if seconds in (0, math.inf):
            return 1.0
        if self._devices.profiles is not None:  # the same, and kept in order
            return self._in_order().median / seconds
        known = np.array(self._devices.seconds)
        return float(np.median(known[np.isfinite(known)]) / seconds)

    def add(self, device: int) -> None:
        """Note a new device, the next one, which is not present yet."""
        self._ranks = self._slowness = None
        if self._kept is not None:
            self._kept.add(self._devices.full_seconds(device))

    def note_speed(self, device: int) -> Changed:
        """Note that a device may have another speed."""
        declared = device in self._declaring
        if self._devices.declared(device):
            self._declaring.add(device)
        else:
            self._declaring.discard(device)
        if self._kept is None or self._declaring or declared:
            return self._forget()
        self._ranks = self._slowness = None
        return self._kept.set(device, self._devices.full_seconds(device))

    def note_present(self, present: set[int]) -> Changed:
        """Note which devices are present now."""
        came, left = present - self._present, self._present - present
        self._present = present
        if not came and not left:
            return ()
        if self._kept is None or len(came) + len(left) > _MANY:
            return self._forget()
        self._ranks = None
        changed: set[int] = set()
        for devices, note in ((came, self._kept.join), (left, self._kept.leave)):
            for device in devices:
                around = note(device)
                if around is None:
                    return self._forget()
                changed.update(around)
        return changed

    def note_loaded(self) -> Changed:
        """Note that other things are known of all devices."""
        known = self._devices
        self._declaring = {each for each in known.capacities if known.declared(each)}
        return self._forget()

    def _forget(self) -> Changed:
        """Forget the order, as the ranks of many devices have changed."""
        self._ranks = self._slowness = self._kept = None
        return None

    def _in_order(self) -> Speeds:
        if self._kept is None:
            slowness = self.slowness.tolist()
            self._kept = Speeds(self.num_ranks, slowness, self._present)
        return self._kept
