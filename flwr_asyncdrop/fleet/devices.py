"""What is known of each device by itself: by its profile, or as it was measured."""

import math
from collections.abc import Sequence
from typing import Any

from flwr_asyncdrop.fleet.capacity import Capacity, Trip, smoothed
from flwr_asyncdrop.fleet.codecs import Link
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.wire import DeviceReport

SHORTEST_TASK = 10.0
"""Seconds that a real device's task takes at least; Flower's transport needs half."""

_SAVED: dict[str, Any] = {"seconds": list[float], "capacities": dict[int, Capacity]}


class Devices:
    """The devices of a fleet by index, each without regard to the others.

    Simulated ones have `profiles`. Of real ones it is measured how long tasks take, and
    some report what they can do.
    """

    def __init__(
        self, profiles: Sequence[DeviceProfile] | None, model_bytes: tuple[int, int]
    ) -> None:
        self.profiles = profiles
        # Of a task with the full model, from dispatch to reply; infinity if unknown. Of
        # a simulated device they are those of its local steps, without transfers.
        self.seconds: list[float] = []
        # Of real devices that report.
        self.capacities: dict[int, Capacity] = {}
        # Of the full model as it travels, coded if there is a codec: down and up.
        self._model_bytes = model_bytes

    def __len__(self) -> int:
        """Return the number of devices ever seen."""
        return len(self.seconds)

    def state_dict(self) -> StateDict:
        """Return what was measured and reported."""
        plain: StateDict = to_plain({name: getattr(self, name) for name in _SAVED})
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what was learned, but for the links of real devices.

        The run's clock has stood still meanwhile, and theirs have not.
        """
        for name, kind in _SAVED.items():
            setattr(self, name, from_plain(kind, state[name]))
        for known in self.capacities.values():
            known.forget_links()

    def add(self) -> None:
        """Add a device, the next one."""
        profiles = self.profiles
        known = math.inf if profiles is None else profiles[len(self)].seconds_per_task
        self.seconds.append(known)

    def observe(self, device: int, seconds: float) -> None:
        """Learn how long a real device takes for the full model, dispatch to reply."""
        self.seconds[device] = smoothed(self.seconds[device], seconds)

    def update_from_report(self, device: int, report: DeviceReport, trip: Trip) -> None:
        """Learn what a real device reports with a reply."""
        known = self.capacities.setdefault(device, Capacity())
        known.update_from_report(report, trip)

    def full_seconds(self, device: int) -> float:
        """Return the seconds of a task with the full model; infinity if unknown.

        Local steps and transfers, if the device reports them; else all from dispatch to
        reply.
        """
        known = self.capacities.get(device)
        if known is None or known.train_seconds == math.inf:
            return self.seconds[device]
        return known.task_seconds(*self._model_bytes)

    def declared(self, device: int) -> float:
        """Return the speed that a real device declares; 0 if it does not."""
        known = self.capacities.get(device)
        return 0.0 if known is None else known.declared

    def most_bytes(self, device: int) -> float:
        """Return the size of the largest submodel that a device can train."""
        known = self.capacities.get(device)
        return math.inf if known is None else known.most_bytes

    def usual_seconds(self, device: int, cost: TaskCost) -> float | None:
        """Return the seconds that a task should take; None if nothing is known.

        By its profile, without jitter; of a real device by its tasks so far.
        """
        if self.profiles is not None:
            return self.profiles[device].duration(cost)
        if self.seconds[device] == math.inf:
            return None
        return self.seconds[device] * cost.compute

    def expected(self, device: int, cost: TaskCost) -> float | None:
        """Return the seconds that a task may well take; None if nothing is known.

        They are the usual ones, and of a real device at least `SHORTEST_TASK`.
        """
        usual = self.usual_seconds(device, cost)
        if usual is None or self.profiles is not None:
            return usual
        return max(usual, SHORTEST_TASK)

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
