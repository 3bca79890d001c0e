"""The simulated fleet that a run-config describes, and who does how much in it."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from flwr_asyncdrop.config import RunConfig
from flwr_asyncdrop.simulation.profiles import (
    BYTES_PER_MEGABIT,
    DeviceProfile,
    TaskCost,
    speed_levels,
)
from flwr_asyncdrop.simulation.traces import read_trace, trace_fleet

__all__ = ["build_fleet", "fastest_share"]


def build_fleet(config: RunConfig) -> Callable[[int], Sequence[DeviceProfile]]:
    """Return what builds the run's fleet from a number of devices, fastest first.

    Raises
    ------
    DataError
        If the trace file is missing or damaged.
    """
    if config.trace:
        path = Path(config.trace).expanduser().absolute()
        return partial(trace_fleet, read_trace(path, config.local_steps))
    return partial(
        speed_levels,
        num_levels=config.levels,
        slowest_over_fastest=config.speed_ratio,
        seconds_per_task=config.step_seconds * config.local_steps,
        bytes_per_second=config.bandwidth_mbps * BYTES_PER_MEGABIT or math.inf,
        jitter=config.jitter,
        dropout=config.dropout,
        availability=config.availability,
        seed=config.seed,
    )


def fastest_share(
    profiles: Sequence[DeviceProfile],
    num_ranks: int,
    cost: TaskCost,
    *,
    uniform: bool = False,
    waits_for: int = 1,
) -> float:
    """Return the expected share of a run's updates that the fastest rank does.

    One task of each rank is in flight at any moment, so a rank does updates at the
    rate at which its devices end theirs. If any idle device may be next, whatever its
    speed, every device does equally many instead, in a fleet that is much larger than
    what is in flight. And where devices wait until `waits_for` updates are there, the
    fastest rank has no more than one among these. Lost tasks are no updates. Absences
    do not count: another device of the rank takes the place.

    Parameters
    ----------
    profiles : sequence of DeviceProfile
        The fleet, fastest first.
    num_ranks : int
        Speed ranks, which is also the number of tasks in flight.
    cost : TaskCost
        What a typical task asks for.
    uniform : bool
        Whether any idle device may be next, in place of one of each rank.
    waits_for : int
        Updates for which devices wait before they go on; 1 if they never wait, and
        `num_ranks` in a synchronous algorithm.
    """
    rates = [0.0] * num_ranks
    for rank in range(num_ranks):
        devices = [
            profile
            for place, profile in enumerate(profiles)
            if place * num_ranks // len(profiles) == rank
        ]
        updates = sum(1 - device.dropout for device in devices)
        seconds = sum(device.mean_duration(cost) for device in devices)
        if devices:
            rates[rank] = updates if uniform else updates / seconds
    return min(rates[0] / sum(rates), 1 / waits_for)
