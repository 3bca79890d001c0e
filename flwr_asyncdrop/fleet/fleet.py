"""The devices seen so far: who they are, how fast, and who may train now."""

import math
from collections.abc import Collection, Iterable, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.capacity import Capacity, Trip, smoothed
from flwr_asyncdrop.fleet.codecs import Link
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.wire import DeviceReport

SHORTEST_TASK = 10.0
"""Seconds that a real device's task takes at least; Flower's transport needs half."""

_MOST_TIMES_FASTER = 10.0

_SAVED: dict[str, Any] = {
    "node_ids": list[int],
    "seconds": list[float],
    "failures_in_a_row": dict[int, int],
    "quarantined_until": dict[int, float],
    "too_small": set[int],
    "capacities": dict[int, Capacity],
}


class Fleet:
    """Devices in the order in which they were first seen, ranked by speed.

    The device at place ``p`` of the ``N`` that are connected, fastest first, has rank
    ``p * num_ranks // N``; equal speeds rank by index. A simulated fleet has
    `profiles`, by device index. Without them speed is measured, and a device that is
    still unknown ranks last.
    """

    def __init__(
        self,
        num_ranks: int,
        profiles: Sequence[DeviceProfile] | None = None,
        model_bytes: int = 0,
    ) -> None:
        self.num_ranks = num_ranks
        self.profiles = profiles
        self.model_bytes = model_bytes
        self.node_ids: list[int] = []
        # Since a device's last success; absent if none.
        self.failures_in_a_row: dict[int, int] = {}
        # When a device gets tasks again, on the loop's clock; a probed one, at the
        # latest. Absent for the others.
        self.quarantined_until: dict[int, float] = {}
        self.probed_until: dict[int, float] = {}
        # Devices without the memory for any submodel.
        self.too_small: set[int] = set()
        # Of a task with the full model, from dispatch to reply; infinity if unknown.
        self.seconds: list[float] = []
        # Of real devices that report.
        self.capacities: dict[int, Capacity] = {}
        self._connected: set[int] = set()
        self._present: set[int] = set()
        self._ranks: NDArray[np.int64] | None = None
        self._slowness: NDArray[np.float64] | None = None
        self._come_and_go = any(p.availability is not None for p in profiles or ())

    def __len__(self) -> int:
        """Return the number of devices ever seen."""
        return len(self.node_ids)

    def quarantined(self, time: float) -> int:
        """Return how many devices are in quarantine at `time`, on the loop's clock."""
        return sum(until > time for until in self.quarantined_until.copy().values())

    def probing(self, time: float) -> int:
        """Return how many devices have not yet answered what they can do."""
        return sum(until > time for until in self.probed_until.copy().values())

    @property
    def present(self) -> Set[int]:
        """The devices that are connected."""
        return self._present

    def state_dict(self) -> StateDict:
        """Return what it has learned, but not who is connected."""
        plain: StateDict = to_plain({name: getattr(self, name) for name in _SAVED})
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was learned.

        A simulated fleet keeps its devices: if other nodes are connected now, as in a
        new run of Flower's simulation engine, they play them.
        """
        for name, kind in _SAVED.items():
            setattr(self, name, from_plain(kind, state[name]))
        if self.profiles is not None and not self._connected.issuperset(self.node_ids):
            self.node_ids = sorted(self._connected)[: len(self)]
        self.refresh(self._connected)
        self._forget_order()

    def refresh(self, node_ids: Iterable[int]) -> None:
        """Note which nodes are connected now; new ones join the fleet, by id.

        When a simulated fleet is complete, new nodes play the devices whose nodes have
        gone, as any node may play any device; a SuperNode that was started again is a
        new node to Flower.
        """
        self._connected = connected = set(node_ids)
        joined = sorted(connected.difference(self.node_ids))
        size = math.inf if self.profiles is None else len(self.profiles)
        while joined and len(self) < size:
            self._add(joined.pop(0))
        if joined:
            self._replace(connected, joined)
        present = {
            index for index, node in enumerate(self.node_ids) if node in connected
        }
        if present != self._present:
            self._present = present
            self._forget_order()

    def _add(self, node_id: int) -> None:
        profiles = self.profiles
        known = np.inf if profiles is None else profiles[len(self)].seconds_per_task
        self.seconds.append(known)
        self.node_ids.append(node_id)

    def _replace(self, connected: Collection[int], joined: Sequence[int]) -> None:
        vacant = (
            index for index, node in enumerate(self.node_ids) if node not in connected
        )
        # As far as both go: there may be more nodes than devices.
        for index, node_id in zip(vacant, joined, strict=False):
            self.node_ids[index] = node_id
            self.clear_failures(index)

    def observe(self, device: int, seconds: float, compute: float) -> None:
        """Learn the speed of a real device from a task; simulated ones keep theirs."""
        if self.profiles is not None:
            return
        self.seconds[device] = smoothed(self.seconds[device], seconds / compute)
        self._forget_order()

    def update_from_report(self, device: int, report: DeviceReport, trip: Trip) -> None:
        """Learn what a real device reports with a reply."""
        if self.profiles is not None:
            return
        known = self.capacities.setdefault(device, Capacity())
        known.update_from_report(report, trip)
        self.too_small.discard(device)
        self._forget_order()

    def most_bytes(self, device: int) -> float:
        """Return the size of the largest submodel that a device can train."""
        known = self.capacities.get(device)
        return math.inf if known is None else known.most_bytes

    def expected(self, device: int, cost: TaskCost) -> float | None:
        """Return the seconds that a task should take; None if nothing is known.

        By its profile, without jitter; of a real device by its tasks so far.
        """
        if self.profiles is not None:
            return self.profiles[device].duration(cost)
        if self.seconds[device] == np.inf:
            return None
        return max(self.seconds[device] * cost.compute, SHORTEST_TASK)

    def link(self, device: int, compute: float) -> Link:
        """Return what is known of a device's next task, and of its bandwidth."""
        if self.profiles is not None:
            profile = self.profiles[device]
            return Link(
                profile.seconds_per_task * compute,
                profile.bytes_per_second_down,
                profile.bytes_per_second_up,
            )
        known = self.capacities.get(device, Capacity())
        down, up = known.bytes_per_second_down, known.bytes_per_second_up
        if math.inf in (down, up):
            return Link()
        return Link(known.train_seconds * compute, down, up)

    def record_failure(self, device: int) -> int:
        """Count a failure of a device; return how many it has had in a row."""
        failures = self.failures_in_a_row.get(device, 0) + 1
        self.failures_in_a_row[device] = failures
        return failures

    def clear_failures(self, device: int) -> None:
        """Forget the failures of a device, and end its quarantine."""
        self.failures_in_a_row.pop(device, None)
        self.quarantined_until.pop(device, None)

    @property
    def ranks(self) -> NDArray[np.int64]:
        """The rank of every device; 0 is the fastest, and absent ones have the last."""
        if self._ranks is None:
            away = np.ones(len(self), dtype=bool)
            away[list(self._present)] = False
            order = np.lexsort((self.slowness, away))
            places = np.empty(len(order), dtype=np.int64)
            places[order] = np.arange(len(order))
            ranks = places * self.num_ranks // max(len(self._present), 1)
            self._ranks = np.minimum(ranks, self.num_ranks - 1)
        return self._ranks

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
                if known.train_seconds < math.inf:
                    slowness[device] = known.task_seconds(self.model_bytes)
                if known.declared:
                    declared[device] = known.declared
            if declared:
                devices, speeds = list(declared), np.array(list(declared.values()))
                work = slowness[devices] * speeds
                work = work[np.isfinite(work)]
                slowness[devices] = (np.median(work) if len(work) else 1.0) / speeds
            self._slowness = slowness
        return self._slowness

    def _forget_order(self) -> None:
        self._ranks = self._slowness = None

    def capability(self, device: int) -> float:
        """Return a device's speed over that of the fastest; 1 while it is unknown.

        Real devices report their speed: one that claims to be more than ten times as
        fast as the median counts as ten times as fast, or it would make nothing of all
        others.
        """
        slowness = self.slowness
        seconds, fastest = slowness[device], slowness.min()
        if seconds in (0, np.inf):  # 0: too fast for the timer
            return 1.0
        if self.profiles is None:
            usual = np.median(slowness[np.isfinite(slowness)])
            fastest = max(fastest, usual / _MOST_TIMES_FASTER)
        return 1.0 if seconds <= fastest else float(fastest / seconds)

    def idle(self, busy: Collection[int], time: float) -> NDArray[np.int64]:
        """Return the devices that can have a task at `time`, ascending.

        Those are connected, not in `busy`, large enough, neither in quarantine nor
        being probed, and, if they are simulated, there by their profile.
        """
        free = sorted(self._present.difference(busy))
        restricted = self.too_small or self.quarantined_until or self.probed_until
        if self._come_and_go or restricted:
            free = [device for device in free if self._free_from(device, time) == time]
        return np.array(free, dtype=np.int64)

    def connected(self) -> NDArray[np.int64]:
        """Return the devices that are connected, ascending."""
        return np.array(sorted(self._present), dtype=np.int64)

    def next_return(self, busy: Collection[int], time: float) -> float:
        """Return when the first device that is not in `busy` can train, from `time` on.

        Infinity if all that are connected are busy, or too small.
        """
        free = self._present.difference(busy)
        return min((self._free_from(device, time) for device in free), default=math.inf)

    def _free_from(self, device: int, time: float) -> float:
        """Return when a device can have a task, from `time` on."""
        if device in self.too_small:
            return math.inf
        quarantined = self.quarantined_until.get(device, time)
        time = max(time, quarantined, self.probed_until.get(device, time))
        availability = None
        if self.profiles is not None:
            availability = self.profiles[device].availability
        return time if availability is None else availability.earliest(time)
