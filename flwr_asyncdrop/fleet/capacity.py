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

    Attributes
    ----------
    left_at, arrived_at : float
        When the device could have it, and when its reply was there, in seconds on the
        server's clock.
    cost : TaskCost
        What it asked of the device.
    """

    left_at: float
    arrived_at: float
    cost: TaskCost

    @property
    def seconds(self) -> float:
        """From the device's first moment with it to its reply."""
        return self.arrived_at - self.left_at


@dataclass
class Leg:
    """One direction of a device's link, from how long messages took that way.

    A message takes a while however small it is, and the two clocks differ by an
    amount that nobody knows; what a larger one takes longer is for its bytes. Polls
    only ever add to it, so the quickest of the last few messages counts.

    Attributes
    ----------
    least_bytes, least_seconds : float
        The smallest message, and the quickest of that size.
    recent : list of list of float
        Bytes and seconds of the last few that were much larger.
    """

    least_bytes: float = math.inf
    least_seconds: float = math.inf
    recent: list[list[float]] = field(default_factory=list)

    def observe(self, num_bytes: float, seconds: float) -> None:
        """Note that so many bytes took so long."""
        if num_bytes > 2 * self.least_bytes + _LEAST_BYTES:
            self.recent = [*self.recent[1 - _RECENT :], [num_bytes, seconds]]
            return
        self.least_bytes = min(self.least_bytes, num_bytes)
        self.least_seconds = min(self.least_seconds, seconds)

    @property
    def bytes_per_second(self) -> float:
        """Its bandwidth; infinity while nothing is seen of it."""
        delays = [
            (seconds - self.least_seconds) / (num_bytes - self.least_bytes)
            for num_bytes, seconds in self.recent
        ]
        shortest = min(delays, default=0.0)
        return 1 / shortest if shortest > 0 else math.inf


@dataclass
class Capacity:
    """What is known of a device, measured with every task; declared values override.

    Attributes
    ----------
    train_seconds : float
        Seconds that the local steps of a task with the full model take, smoothed;
        infinity if that is not known.
    memory : float
        Bytes that training may take; infinity if that is not known.
    declared : float
        Declared speed, relative to the other devices of the fleet; 0 if none is.
    bandwidth : float
        Declared bytes a second, in each direction; 0 if none are.
    down, up : Leg
        The link to the device and from it.
    """

    train_seconds: float = math.inf
    memory: float = math.inf
    declared: float = 0.0
    bandwidth: float = 0.0
    down: Leg = field(default_factory=Leg)
    up: Leg = field(default_factory=Leg)

    def update_from_report(self, report: DeviceReport, trip: Trip) -> None:
        """Learn from what a device reports with a reply.

        Parameters
        ----------
        report : DeviceReport
            What it says of itself.
        trip : Trip
            What the server saw of it.
        """
        self.memory = report.memory or math.inf
        self.declared = report.capacity
        self.bandwidth = report.bandwidth
        if report.train_seconds:
            full = report.train_seconds / trip.cost.compute
            self.train_seconds = smoothed(self.train_seconds, full)
        if report.received_at and report.finished_at:
            cost = trip.cost
            self.down.observe(cost.bytes_down, report.received_at - trip.left_at)
            self.up.observe(cost.bytes_up, trip.arrived_at - report.finished_at)

    @property
    def bytes_per_second_down(self) -> float:
        """Bandwidth to the device; infinity if it never made a difference."""
        return self.bandwidth or self.down.bytes_per_second

    @property
    def bytes_per_second_up(self) -> float:
        """Bandwidth from the device; infinity if it never made a difference."""
        return self.bandwidth or self.up.bytes_per_second

    def task_seconds(self, num_bytes: float) -> float:
        """Return what a task with the full model takes: local steps and transfers.

        Parameters
        ----------
        num_bytes : float
            Size of the full model.
        """
        down = num_bytes / self.bytes_per_second_down
        up = num_bytes / self.bytes_per_second_up
        return self.train_seconds + down + up

    @property
    def most_bytes(self) -> float:
        """Size of the largest submodel that the device has the memory to train.

        A fifth of its memory: the weights, their gradients, two moments of an
        optimiser, and what is sent back. Activations come on top.
        """
        return self.memory / _COPIES
