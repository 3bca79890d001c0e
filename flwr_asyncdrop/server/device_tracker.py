"""What the ends of tasks say of their devices."""

import math

from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.devices import SHORTEST_TASK
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import DeviceReport


class DeviceTracker:
    """Learns from tasks that end: how fast devices are, which fail, which are free."""

    def __init__(self, fleet: Fleet, faults: FaultPolicy) -> None:
        self._fleet = fleet
        self._faults = faults
        # When each device replied last, and the model's version by then.
        self._replied: dict[int, tuple[float, int]] = {}

    def began(self, order: Order) -> tuple[float, int]:
        """Return when a device could begin with a task, and what it missed by then.

        What it missed: the versions of the model that came while the task waited behind
        another.
        """
        time, version = self._replied.get(order.device, (-math.inf, 0))
        if time <= order.timing.dispatched_at:
            return order.timing.dispatched_at, 0
        return time, version - order.base_version

    def replied(self, state: RunState, device: int) -> None:
        """Note that a device is free for the next task of its queue."""
        self._replied[device] = state.time, state.version

    def succeeded(self, order: Order, trip: Trip, report: DeviceReport | None) -> None:
        """Learn from a task that was done."""
        self._fleet.observe(order.device, trip.seconds, trip.cost.compute)
        if report is not None:
            self._fleet.update_from_report(order.device, report, trip)
        self._fleet.readiness.clear_failures(order.device)

    def took_longer(self, order: Order, seconds: float) -> None:
        """Learn from a task that was given up: it takes at least that long."""
        if self._fleet.devices.expected(order.device, order.cost) is not None:
            self._fleet.observe(order.device, seconds, order.cost.compute)

    def failed(self, state: RunState, order: Order) -> None:
        """Count a failure of a device, and quarantine it if there are too many."""
        fleet, device = self._fleet, order.device
        expected = fleet.devices.expected(device, order.cost) or SHORTEST_TASK
        failures = fleet.readiness.record_failure(device)
        seconds = self._faults.quarantine(failures, expected)
        if seconds:
            fleet.readiness.quarantine(device, state.time + seconds)
