"""What the server knows of a real device: how fast it computes, and its link."""

import math
from dataclasses import dataclass, field

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.wire import DeviceReport

_SMOOTHING = 0.3
_RECENT = 8
_LEAST_BYTES = 65_536
# Training holds the weights, their gradients, at most two moments of an optimiser,
# and what is sent back.
_COPIES = 5


def smoothed(known: float, fresh: float) -> float:
    """Return the exponential moving average; infinity is not known yet."""
    return fresh if math.isinf(known) else known + _SMOOTHING * (fresh - known)


@dataclass(frozen=True)
class Trip:
    """The way of one message to a device and back.

    `left_at` is when the device could have it, `arrived_at` when its reply was there,
    in seconds on the server's clock.
    """

    left_at: float
    arrived_at: float
    cost: TaskCost

    @property
    def seconds(self) -> float:
        """Seconds between the two."""
        return self.arrived_at - self.left_at


@dataclass
class Leg:
    """One direction of a device's link, measured by how long messages took.

    Every message has a delay whatever its size, and the two clocks differ by an unknown
    amount: only what a larger message takes longer is due to its bytes. Polls can only
    add time, so the quickest of the last few large messages counts, against the
    smallest message and the quickest of that size.
    """

    least_bytes: float = math.inf
    least_seconds: float = math.inf
    # Bytes and seconds of the last few that were much larger.
    recent: list[list[float]] = field(default_factory=list)

    def observe(self, num_bytes: float, seconds: float) -> None:
        """Learn from one message."""
        if num_bytes > 2 * self.least_bytes + _LEAST_BYTES:
            self.recent = [*self.recent[1 - _RECENT :], [num_bytes, seconds]]
            return
        self.least_bytes = min(self.least_bytes, num_bytes)
        self.least_seconds = min(self.least_seconds, seconds)

    def follow_clock(self, seconds: float) -> None:
        """Note that messages seem to take so many seconds more from now on."""
        self.least_seconds += seconds
        self.recent = [[size, taken + seconds] for size, taken in self.recent]

    @property
    def bytes_per_second(self) -> float:
        """Its bandwidth; infinity while it is unknown."""
        delays = [
            (seconds - self.least_seconds) / (num_bytes - self.least_bytes)
            for num_bytes, seconds in self.recent
        ]
        shortest = min(delays, default=0.0)
        return 1 / shortest if shortest > 0 else math.inf


@dataclass
class Capacity:
    """What is known of a device: measured with every task, or declared by its owner."""

    train_seconds: float = math.inf  # local steps of the full model, smoothed
    memory: float = math.inf  # bytes that training may take
    declared: float = 0.0  # speed, relative to the other devices; 0 if none is
    bandwidth: float = 0.0  # declared, bytes a second each way; 0 if none is
    down: Leg = field(default_factory=Leg)
    up: Leg = field(default_factory=Leg)

    def update_from_report(self, report: DeviceReport, trip: Trip) -> None:
        """Learn from a device's report and what the server saw of the task."""
        self.memory = report.memory or math.inf
        self.declared = report.capacity
        self.bandwidth = report.bandwidth
        if report.train_seconds:
            full = report.train_seconds / trip.cost.compute
            self.train_seconds = smoothed(self.train_seconds, full)
        if report.received_at and report.finished_at:
            down = report.received_at - trip.left_at
            up = trip.arrived_at - report.finished_at
            self._follow_clocks(down, up)
            self.down.observe(trip.cost.bytes_down, down)
            self.up.observe(trip.cost.bytes_up, up)

    def _follow_clocks(self, down: float, up: float) -> None:
        """Follow a clock that was set, or stood still while its computer slept.

        The clocks' difference drops out of a way down and one up, which take no less
        than no time together. What they seem to take less, the difference has changed,
        at the least.
        """
        set_back = max(-(down + self.up.least_seconds), 0.0)
        set_forward = max(-(up + self.down.least_seconds), 0.0)
        self.down.follow_clock(set_forward - set_back)
        self.up.follow_clock(set_back - set_forward)

    def forget_links(self) -> None:
        """Measure them anew, as the clocks differ by another amount from now on."""
        self.down, self.up = Leg(), Leg()

    @property
    def bytes_per_second_down(self) -> float:
        """Bandwidth to the device; infinity while it is unknown."""
        return self.bandwidth or self.down.bytes_per_second

    @property
    def bytes_per_second_up(self) -> float:
        """Bandwidth from the device; infinity while it is unknown."""
        return self.bandwidth or self.up.bytes_per_second

    def task_seconds(self, bytes_down: float, bytes_up: float) -> float:
        """Return the seconds of a task with the full model, with its transfers."""
        down = bytes_down / self.bytes_per_second_down
        up = bytes_up / self.bytes_per_second_up
        return self.train_seconds + down + up

    @property
    def most_bytes(self) -> float:
        """Size of the largest submodel that it can train; activations come on top."""
        return self.memory / _COPIES
