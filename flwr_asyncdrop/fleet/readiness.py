"""Which devices of a fleet can have a task, and from when on."""

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.calendar import Calendar
from flwr_asyncdrop.fleet.devices import Devices
from flwr_asyncdrop.fleet.filing import Filing
from flwr_asyncdrop.fleet.idle import IdleDevices, ListedDevices
from flwr_asyncdrop.fleet.relative_speeds import Changed, RelativeSpeeds
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain

_SAVED: dict[str, Any] = {
    "failures_in_a_row": dict[int, int],
    "quarantined_until": dict[int, float],
    "too_small": set[int],
}


class Readiness:
    """What keeps devices from having a task, and who is idle.

    No task goes to one that is away, in quarantine, too small for any submodel, or has
    not yet said what it can do; nor to a simulated one while its profile has it away.
    `idle` is the rule, and looks at every device. `idle_devices` says the same from
    what is kept up to date.
    """

    def __init__(self, devices: Devices, speeds: RelativeSpeeds) -> None:
        self._devices = devices
        self._speeds = speeds
        # Since a device's last success; absent if none.
        self.failures_in_a_row: dict[int, int] = {}
        # When a device gets tasks again, on the loop's clock; a probed one, at the
        # latest. Absent for the others. `quarantine` and the like change them.
        self.quarantined_until: dict[int, float] = {}
        self.probed_until: dict[int, float] = {}
        # Devices without the memory for any submodel.
        self.too_small: set[int] = set()
        # By whether ranks count, and whether devices are left out that lost tasks.
        self._filings: dict[tuple[bool, bool], Filing] = {}
        availabilities = [profile.availability for profile in devices.profiles or ()]
        self._come_and_go = any(availabilities)
        suits = self._come_and_go and Calendar.suits(availabilities)
        self._calendar = Calendar(availabilities) if suits else None

    def state_dict(self) -> StateDict:
        """Return what keeps devices from having a task; who is probed is asked anew."""
        plain: StateDict = to_plain({name: getattr(self, name) for name in _SAVED})
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what `state_dict` returned."""
        for name, kind in _SAVED.items():
            setattr(self, name, from_plain(kind, state[name]))

    def quarantined(self, time: float) -> int:
        """Return how many devices are in quarantine at `time`, on the loop's clock."""
        return sum(until > time for until in self.quarantined_until.copy().values())

    def probing(self, time: float) -> int:
        """Return how many devices have not yet answered what they can do."""
        return sum(until > time for until in self.probed_until.copy().values())

    def record_failure(self, device: int) -> int:
        """Count a failure of a device; return how many it has had in a row."""
        failures = self.failures_in_a_row.get(device, 0) + 1
        self.failures_in_a_row[device] = failures
        return failures

    def clear_failures(self, device: int) -> None:
        """Forget the failures of a device, and end its quarantine."""
        self.failures_in_a_row.pop(device, None)
        if self.quarantined_until.pop(device, None) is not None:
            self._refile(device)

    def quarantine(self, device: int, until: float) -> None:
        """Give a device no task before `until`, on the loop's clock."""
        self.quarantined_until[device] = until
        self._refile(device)

    def await_answer(self, device: int, until: float) -> None:
        """Give a device no task before it has answered, or until `until`."""
        self.probed_until[device] = until
        self._refile(device)

    def answered(self, device: int) -> None:
        """Note that a device has said what it can do."""
        self.probed_until.pop(device, None)
        self._refile(device)

    def rule_out(self, device: int) -> None:
        """Give a device no task until it reports anew: no submodel is small enough."""
        self.too_small.add(device)
        self._refile(device)

    def admit(self, device: int) -> None:
        """Note that a device has reported, so that a submodel may be small enough."""
        self.too_small.discard(device)
        self._refile(device)

    def idle(self, busy: Collection[int], time: float) -> NDArray[np.int64]:
        """Return the devices that can have a task at `time`, ascending.

        Those are connected, not in `busy`, large enough, neither in quarantine nor
        being probed, and, if they are simulated, there by their profile.
        """
        free = sorted(self._speeds.present - {*busy})
        restricted = self.too_small or self.quarantined_until or self.probed_until
        if self._come_and_go or restricted:
            free = [device for device in free if self._free_from(device, time) == time]
        return np.array(free, dtype=np.int64)

    def can_train(self, device: int, busy: Collection[int], time: float) -> bool:
        """Return whether a device is one of those that `idle` returns."""
        return device not in busy and self._free_from(device, time) == time

    def next_return(self, busy: Collection[int], time: float) -> float:
        """Return when the first device that is not in `busy` can train, from `time` on.

        Infinity if all that are connected are busy, or too small.
        """
        free = self._speeds.present - {*busy}
        return min((self._free_from(device, time) for device in free), default=math.inf)

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
        speeds = self._speeds
        if speeds.declared or (self._come_and_go and self._calendar is None):
            # The speed of one changes that of others; or nothing says who has come.
            idle = self.idle(taken, time)
            idle = np.setdiff1d(idle, lost) if len(lost) else idle
            ranks = speeds.ranks if by_rank else np.zeros(len(self._devices), int)
            return ListedDevices(idle, ranks, speeds.num_ranks if by_rank else 1)
        key = by_rank, bool(lost)
        if key not in self._filings:
            self._filings[key] = Filing(
                speeds.num_ranks if by_rank else 1,
                self._released_at,
                speeds.rank if by_rank else lambda device: 0,
                lambda: self._filed_ranks(by_rank=by_rank),
            )
        filed = self._filings[key].at(time, taken, lost)
        if self._calendar is not None:
            self._calendar.move_to(time)
            filed.there = self._calendar.there
        return filed

    def _filed_ranks(self, *, by_rank: bool) -> tuple[NDArray[np.int64], set[int]]:
        ranks = np.full(len(self._devices), -1, dtype=np.int64)
        present = list(self._speeds.present)
        ranks[present] = self._speeds.ranks[present] if by_rank else 0
        restricted = self.too_small | {*self.quarantined_until, *self.probed_until}
        return ranks, restricted & self._speeds.present

    def _free_from(self, device: int, time: float) -> float:
        """Return when a device that is present can have a task, from `time` on."""
        time = self._released_at(device, time)
        profiles = self._devices.profiles
        if profiles is None or time == math.inf:
            return time
        availability = profiles[device].availability
        return time if availability is None else availability.earliest(time)

    def _released_at(self, device: int, time: float) -> float:
        """Return when nothing keeps a device from having a task but its profile."""
        if device in self.too_small or device not in self._speeds.present:
            return math.inf
        quarantined = self.quarantined_until.get(device, time)
        return max(time, quarantined, self.probed_until.get(device, time))

    def refile(self, changed: Changed) -> None:
        """Note that devices have come or gone, or have other ranks."""
        if changed is not None:
            self._refile(*changed)
            return
        for filing in self._filings.values():
            filing.forget()

    def _refile(self, *devices: int) -> None:
        for filing in self._filings.values():
            filing.changed.update(devices)
