"""The devices seen so far: who they are, and what is learned of each."""

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from flwr_asyncdrop.fleet.capacity import Capacity, Trip, smoothed
from flwr_asyncdrop.fleet.codecs import Link
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.fleet.ready import ReadyDevices
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.wire import DeviceReport

SHORTEST_TASK = 10.0
"""Seconds that a real device's task takes at least; Flower's transport needs half."""

_SAVED: dict[str, Any] = {
    "node_ids": list[int],
    "seconds": list[float],
    "failures_in_a_row": dict[int, int],
    "quarantined_until": dict[int, float],
    "too_small": set[int],
    "capacities": dict[int, Capacity],
}


class Fleet(ReadyDevices):
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
        self._seen: tuple[int, ...] = ()  # the nodes of the last look
        self._connected: set[int] = set()
        self._device_of: dict[int, int] = {}  # by node

    def __len__(self) -> int:
        """Return the number of devices ever seen."""
        return len(self.node_ids)

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
        self._forget_speeds()
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
        self._add_device(known)
        self.node_ids.append(node_id)
        self._device_of[node_id] = device

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
        self._note_declared(device)
        self._note_changed(device)
        self._note_speed(device)

    def most_bytes(self, device: int) -> float:
        """Return the size of the largest submodel that a device can train."""
        known = self.capacities.get(device)
        return math.inf if known is None else known.most_bytes

    def expected(self, device: int, cost: TaskCost) -> float | None:
        """Return the seconds that a task may well take; None if nothing is known.

        They are the usual ones, and of a real device at least `SHORTEST_TASK`.
        """
        usual = self.usual_seconds(device, cost)
        if usual is None or self.profiles is not None:
            return usual
        return max(usual, SHORTEST_TASK)

    def usual_seconds(self, device: int, cost: TaskCost) -> float | None:
        """Return the seconds that a task should take; None if nothing is known.

        By its profile, without jitter; of a real device by its tasks so far.
        """
        if self.profiles is not None:
            return self.profiles[device].duration(cost)
        if self.seconds[device] == math.inf:
            return None
        return self.seconds[device] * cost.compute

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
