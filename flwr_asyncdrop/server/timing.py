"""When a task is due, when it is overdue, and when nobody waits for it any more."""

import math

from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.seeding import numpy_generator
from flwr_asyncdrop.server.order import Timing
from flwr_asyncdrop.server.state import RunState


def timing_of(
    state: RunState,
    fleet: Fleet,
    device: int,
    cost: TaskCost,
    *,
    faults: FaultPolicy,
    ttl: float,
) -> Timing:
    """Return the times of a task that leaves now, in seconds on the loop's clock.

    Nothing waits longer than `ttl` seconds for a real device.
    """
    expected = fleet.devices.expected(device, cost)
    if fleet.profiles is not None:
        profile = fleet.profiles[device]
        return _simulated(state, profile, cost, faults.waits(expected))
    if expected is not None:
        # Behind those that the device has already.
        expected *= 1 + sum(other.device == device for other in state.orders)
    overdue, given_up = faults.waits(expected, ttl)
    left = state.time
    return Timing(left, deadline=left + overdue, gives_up=left + given_up)


def _simulated(
    state: RunState,
    profile: DeviceProfile,
    cost: TaskCost,
    waits: tuple[float, float],
) -> Timing:
    """Return those of a simulated task; `waits` are until it is overdue, and given up.

    What is drawn for it follows from the seed and its number alone.
    """
    left, number, (overdue, given_up) = state.time, state.dispatched, waits
    noise, share = 0.0, 1.0
    if profile.jitter:
        noise = numpy_generator(state.seed, "jitter", number).standard_normal()
    if profile.dropout:
        share = numpy_generator(state.seed, "dropout", number).random()
    duration = profile.duration(cost, noise)
    if share < profile.dropout:
        # It shows when it is overdue; without deadlines, when it would be there.
        shows = left + (duration if overdue == math.inf else overdue)
        return Timing(left, deadline=shows, gives_up=shows, lost=True)
    return Timing(left, left + duration, left + overdue, left + given_up)
