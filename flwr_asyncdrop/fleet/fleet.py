"""The devices seen so far: who they are, how fast, and who may train now."""

import math
from collections.abc import Collection, Iterable, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.calendar import Calendar
from flwr_asyncdrop.fleet.capacity import Capacity, Trip, smoothed
from flwr_asyncdrop.fleet.codecs import Link
from flwr_asyncdrop.fleet.filing import Filing
from flwr_asyncdrop.fleet.idle import IdleDevices, ListedDevices
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.ranked import RankedDevices
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.wire import DeviceReport

SHORTEST_TASK = 10.0
"""Seconds that a real device's task takes at least; Flower's transport needs half."""

_MANY = 200  # devices that come or go: all are put in order again

_SAVED: dict[str, Any] = {
    "node_ids": list[int],
    "seconds": list[float],
    "failures_in_a_row": dict[int, int],
    "quarantined_until": dict[int, float],
    "too_small": set[int],
    "capacities": dict[int, Capacity],
}


class Fleet(RankedDevices):
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
        model_bytes: tuple[int, int] = (0, 0),
    ) -> None:
        super().__init__(num_ranks, profiles, model_bytes)
        self.node_ids: list[int] = []
        # Since a device's last success; absent if none.
        self.failures_in_a_row: dict[int, int] = {}
        # When a device gets tasks again, on the loop's clock; a probed one, at the
        # latest. Absent for the others. `quarantine` and the like change them.
        self.quarantined_until: dict[int, float] = {}
        self.probed_until: dict[int, float] = {}
        # Devices without the memory for any submodel.
        self.too_small: set[int] = set()
        self._seen: tuple[int, ...] = ()  # the nodes of the last look
        self._connected: set[int] = set()
        self._device_of: dict[int, int] = {}  # by node
        availabilities = [profile.availability for profile in profiles or ()]
        self._come_and_go = any(availabilities)
        suits = self._come_and_go and Calendar.suits(availabilities)
        self._calendar = Calendar(availabilities) if suits else None

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
        """Take over what was learned, but for the links of real devices.

        The run's clock has stood still meanwhile, and theirs have not. A simulated
        fleet keeps its devices: if other nodes are connected now, as in a new run of
        Flower's simulation engine, they play them.
        """
        for name, kind in _SAVED.items():
            setattr(self, name, from_plain(kind, state[name]))
        for known in self.capacities.values():
            known.forget_links()
        if self.profiles is not None and not self._connected.issuperset(self.node_ids):
            self.node_ids = sorted(self._connected)[: len(self)]
        self._device_of = {node: at for at, node in enumerate(self.node_ids)}
        self._declared = {d for d, known in self.capacities.items() if known.declared}
        self._forget_order()
        self._look(self._connected)

    def refresh(self, node_ids: Iterable[int]) -> None:
        """Note which nodes are connected now; new ones join the fleet, by id.

        When a simulated fleet is complete, new nodes play the devices whose nodes have
        gone, as any node may play any device; a SuperNode that was started again is a
        new node to Flower.
        """
        if node_ids is self._seen:
            return
        seen = tuple(node_ids)
        if seen != self._seen:
            self._seen = seen
            self._look(set(seen))

    def _look(self, connected: set[int]) -> None:
        self._connected = connected
        joined = sorted(connected.difference(self._device_of))
        size = math.inf if self.profiles is None else len(self.profiles)
        room = max(size - len(self), 0)
        for number, node_id in enumerate(joined):
            if number == room:
                self._replace(connected, joined[number:])
                break
            self._add(node_id)
        known = self._device_of
        self._note_present({known[node] for node in connected if node in known})

    def _add(self, node_id: int) -> None:
        profiles, device = self.profiles, len(self)
        known = math.inf if profiles is None else profiles[device].seconds_per_task
        self.seconds.append(known)
        self.node_ids.append(node_id)
        self._device_of[node_id] = device
        self._ranks = self._slowness = None
        if self._speeds is not None:
            self._speeds.add(known)

    def _replace(self, connected: Collection[int], joined: Sequence[int]) -> None:
        vacant = (
            index for index, node in enumerate(self.node_ids) if node not in connected
        )
        # As far as both go: there may be more nodes than devices.
        for index, node_id in zip(vacant, joined, strict=False):
            del self._device_of[self.node_ids[index]]
            self.node_ids[index] = node_id
            self._device_of[node_id] = index
            self.clear_failures(index)

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

    def observe(self, device: int, seconds: float, compute: float) -> None:
        """Learn the speed of a real device from a task; simulated ones keep theirs."""
        if self.profiles is not None:
            return
        self.seconds[device] = smoothed(self.seconds[device], seconds / compute)
        self._note_speed(device)

    def update_from_report(self, device: int, report: DeviceReport, trip: Trip) -> None:
        """Learn what a real device reports with a reply."""
        if self.profiles is not None:
            return
        known = self.capacities.setdefault(device, Capacity())
        known.update_from_report(report, trip)
        self.too_small.discard(device)
        if known.declared or device in self._declared:
            (self._declared.add if known.declared else self._declared.discard)(device)
            self._forget_order()
        self._note_changed(device)
        self._note_speed(device)

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

    @property
    def counts_energy(self) -> bool:
        """Whether a device says how much energy it takes; real ones do not."""
        return any(profile.counts_energy for profile in self.profiles or ())

    def energy(self, device: int, cost: TaskCost) -> float:
        """Return the joules that a device takes, as far as its profile says."""
        return 0.0 if self.profiles is None else self.profiles[device].energy(cost)

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
        if self.quarantined_until.pop(device, None) is not None:
            self._note_changed(device)

    def quarantine(self, device: int, until: float) -> None:
        """Give a device no task before `until`, on the loop's clock."""
        self.quarantined_until[device] = until
        self._note_changed(device)

    def await_answer(self, device: int, until: float) -> None:
        """Give a device no task before it has answered, or until `until`."""
        self.probed_until[device] = until
        self._note_changed(device)

    def answered(self, device: int) -> None:
        """Note that a device has said what it can do."""
        self.probed_until.pop(device, None)
        self._note_changed(device)

    def rule_out(self, device: int) -> None:
        """Give a device no task until it reports more memory: none is small enough."""
        self.too_small.add(device)
        self._note_changed(device)

    def idle_devices(
        self,
        taken: Collection[int],
        time: float,
        *,
        lost: Sequence[int] = (),
        by_rank: bool = True,
    ) -> IdleDevices:
        """Return what `idle` does, by rank, without a look at every device.

        Those that are `lost` are left out, too. If not `by_rank`, all have rank 0.
        """
        if self._declared or (self._come_and_go and self._calendar is None):
            # The speed of one changes that of others; or nothing says who has come.
            idle = self.idle(taken, time)
            idle = np.setdiff1d(idle, lost) if len(lost) else idle
            ranks = self.ranks if by_rank else np.zeros(len(self), dtype=np.int64)
            return ListedDevices(idle, ranks, self.num_ranks if by_rank else 1)
        key = by_rank, bool(lost)
        if key not in self._idle:
            self._idle[key] = Filing(
                self.num_ranks if by_rank else 1,
                self._released_at,
                self.rank if by_rank else lambda device: 0,
                lambda: self._filed_ranks(by_rank=by_rank),
            )
        filed = self._idle[key].at(time, taken, lost)
        if self._calendar is not None:
            self._calendar.move_to(time)
            filed.there = self._calendar.there
        return filed

    def _filed_ranks(self, *, by_rank: bool) -> tuple[NDArray[np.int64], set[int]]:
        ranks = np.full(len(self), -1, dtype=np.int64)
        present = list(self._present)
        ranks[present] = self.ranks[present] if by_rank else 0
        restricted = self.too_small | {*self.quarantined_until, *self.probed_until}
        return ranks, restricted & self._present

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

    def can_train(self, device: int, busy: Collection[int], time: float) -> bool:
        """Return whether a device is one of those that `idle` returns."""
        return device not in busy and self._free_from(device, time) == time

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
        """Return when a device that is present can have a task, from `time` on."""
        time = self._released_at(device, time)
        if self.profiles is None or time == math.inf:
            return time
        availability = self.profiles[device].availability
        return time if availability is None else availability.earliest(time)

    def _released_at(self, device: int, time: float) -> float:
        """Return when nothing keeps a device from having a task but its profile."""
        if device in self.too_small or device not in self._present:
            return math.inf
        quarantined = self.quarantined_until.get(device, time)
        return max(time, quarantined, self.probed_until.get(device, time))
