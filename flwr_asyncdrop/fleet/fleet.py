"""The devices seen so far: who they are, and what is learned of each."""

import math
from collections.abc import Collection, Iterable, Sequence, Set

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.devices import Devices
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.readiness import Readiness
from flwr_asyncdrop.fleet.relative_speeds import RelativeSpeeds
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.wire import DeviceReport


class Fleet:
    """Devices in the order in which they were first seen, and their nodes.

    The device at place ``p`` of the ``N`` that are connected, fastest first, has rank
    ``p * num_ranks // N``; equal speeds rank by index. A simulated fleet has
    `profiles`, by device index. Without them speed is measured, and a device that is
    still unknown ranks last.

    Attributes
    ----------
    devices : Devices
        What is known of each device by itself.
    speeds : RelativeSpeeds
        Their ranks, and how fast they are beside each other.
    readiness : Readiness
        Which of them can have a task, and from when on.
    """

    def __init__(
        self,
        num_ranks: int,
        profiles: Sequence[DeviceProfile] | None = None,
        model_bytes: tuple[int, int] = (0, 0),
    ) -> None:
        self.profiles = profiles
        self.devices = Devices(profiles, model_bytes)
        self.speeds = RelativeSpeeds(num_ranks, self.devices)
        self.readiness = Readiness(self.devices, self.speeds)
        self.node_ids: list[int] = []
        self._seen: tuple[int, ...] = ()  # the nodes of the last look
        self._connected: set[int] = set()
        self._device_of: dict[int, int] = {}  # by node

    def __len__(self) -> int:
        """Return the number of devices ever seen."""
        return len(self.node_ids)

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.speeds.num_ranks

    @property
    def present(self) -> Set[int]:
        """The devices that are connected."""
        return self.speeds.present

    def connected(self) -> NDArray[np.int64]:
        """Return the devices that are connected, ascending."""
        return np.array(sorted(self.present), dtype=np.int64)

    def state_dict(self) -> StateDict:
        """Return what it has learned, but not who is connected."""
        learned = self.devices.state_dict() | self.readiness.state_dict()
        return {"node_ids": list(self.node_ids), **learned}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was learned.

        A simulated fleet keeps its devices: if other nodes are connected now, as in a
        new run of Flower's simulation engine, they play them.
        """
        self.node_ids = list(state["node_ids"])
        self.devices.load_state_dict(state)
        self.readiness.load_state_dict(state)
        if self.profiles is not None and not self._connected.issuperset(self.node_ids):
            self.node_ids = sorted(self._connected)[: len(self)]
        self._device_of = {node: at for at, node in enumerate(self.node_ids)}
        self.readiness.refile(self.speeds.note_loaded())
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
        present = {known[node] for node in connected if node in known}
        self.readiness.refile(self.speeds.note_present(present))

    def _add(self, node_id: int) -> None:
        device = len(self)
        self.devices.add()
        self.speeds.add(device)
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
            self.readiness.clear_failures(index)

    def observe(self, device: int, seconds: float, compute: float) -> None:
        """Learn the speed of a real device from a task; simulated ones keep theirs."""
        if self.profiles is None:
            self.devices.observe(device, seconds / compute)
            self.readiness.refile(self.speeds.note_speed(device))

    def update_from_report(self, device: int, report: DeviceReport, trip: Trip) -> None:
        """Learn what a real device reports with a reply."""
        if self.profiles is None:
            self.devices.update_from_report(device, report, trip)
            self.readiness.admit(device)
            self.readiness.refile(self.speeds.note_speed(device))
