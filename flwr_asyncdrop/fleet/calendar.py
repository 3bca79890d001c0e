"""Which simulated devices are there, followed through time for all of them at once."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.fleet.availability import Availability

_MOST_PERIODS = 16


class Calendar:
    """Follows the presence of devices that have one of a few periods.

    `there` has, for each device, in how many of its intervals the time lies: 0 is away.
    A step in time costs what the devices that come or go in it cost.
    """

    def __init__(self, availabilities: Sequence[Availability | None]) -> None:
        always = [availability is None for availability in availabilities]
        self.there = np.array(always, dtype=np.int8)
        by_period: dict[float, list[tuple[int, Availability]]] = {}
        for device, availability in enumerate(availabilities):
            if availability is not None:
                members = by_period.setdefault(availability.period, [])
                members.append((device, availability))
        self._periods = [
            _Period(period, members, self.there)
            for period, members in by_period.items()
        ]

    @staticmethod
    def suits(availabilities: Sequence[Availability | None]) -> bool:
        """Whether there are few enough periods for it to be fast."""
        periods = {each.period for each in availabilities if each is not None}
        return len(periods) <= _MOST_PERIODS

    def move_to(self, time: float) -> None:
        """Make `there` that of a time, in virtual seconds."""
        for period in self._periods:
            period.move_to(time)


class _Period:
    """The devices of one period."""

    def __init__(
        self,
        period: float,
        members: Sequence[tuple[int, Availability]],
        there: NDArray[np.int8],
    ) -> None:
        self._period = period
        self._there = there
        # Beginnings and ends of intervals, in one list by their time in the period.
        events = sorted(
            (offset, device, change)
            for device, availability in members
            for start, end in availability.intervals
            for offset, change in ((start, 1), (end, -1))
        )
        offsets, devices, changes = zip(*events, strict=True)
        self._offsets = np.array(offsets)
        self._devices = np.array(devices)
        self._changes = np.array(changes, dtype=np.int8)
        self._members = np.array([device for device, _ in members])
        self._cycle = math.inf
        self._moments: list[NDArray[np.float64]] = []
        self._reached: list[int] = []

    def move_to(self, time: float) -> None:
        cycle = math.floor(time / self._period)
        if cycle != self._cycle:
            self._begin(cycle)
        for at, moments in enumerate(self._moments):
            reached = int(np.searchsorted(moments, time, side="right"))
            before = self._reached[at]
            self._reached[at] = reached
            sign = 1 if reached > before else -1
            passed = slice(min(before, reached), max(before, reached))
            np.add.at(self._there, self._devices[passed], sign * self._changes[passed])

    def _begin(self, cycle: int) -> None:
        # As `Availability.earliest` has it, with the same neighbours.
        self._cycle = cycle
        self._there[self._members] = 0
        self._moments = [
            number * self._period + self._offsets
            for number in range(cycle - 1, cycle + 3)
        ]
        self._reached = [0] * len(self._moments)
