"""Fleets of a few speed levels, as the paper's experiments have them."""

import math
from collections.abc import Sequence
from dataclasses import replace

from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.profiles import BANDWIDTHS, DeviceProfile
from flwr_asyncdrop.parameters import at_least, in_interval, more_than, whole_from
from flwr_asyncdrop.seeding import numpy_generator

_TASKS_PER_PERIOD = 20


def speed_levels(
    num_devices: int,
    *,
    num_levels: int = 8,
    slowest_over_fastest: float = 5.0,
    seconds_per_task: float = 1.0,
    bytes_per_second: float = math.inf,
    jitter: float = 0.0,
    dropout: float = 0.0,
    availability: float = 1.0,
    watts: float = 0.0,
    joules_per_byte: float = 0.0,
    seed: int = 0,
) -> Sequence[DeviceProfile]:
    """Build the paper's fleet: equally many devices at evenly spaced delays.

    Device ``i`` belongs to level ``i * num_levels // num_devices``; level 0 is the
    fastest. The paper simulates 8 levels of 13 devices, the slowest five times as
    slow as the fastest (section "Experimental setup"), which are always there and
    lose nothing.

    Parameters
    ----------
    num_devices : int
        Size of the fleet.
    num_levels : int
        Number of speed levels; no more than ``num_devices`` are used.
    slowest_over_fastest : float
        Delay of the slowest level over that of the fastest, at least 1.
    seconds_per_task : float
        Virtual seconds of one full-model task on the fastest level.
    bytes_per_second : float
        Bandwidth of the fastest level, in each direction; slower levels get
        proportionally less.
    jitter, dropout : float
        Of every device; see `DeviceProfile`.
    availability : float
        Share of the time that every device is there, in ``(0, 1]``: one stretch in
        every period of 20 full-model tasks of the fastest level.
    watts, joules_per_byte : float
        Of every device; see `DeviceProfile`. A level that is five times as slow takes
        five times the energy to compute.
    seed : int
        Seed of the phases: devices come and go independently of each other.

    Returns
    -------
    sequence of DeviceProfile
        One profile per device, fastest first.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """
    num_devices = whole_from(1).check("num_devices", num_devices)
    num_levels = whole_from(1).check("num_levels", num_levels)
    slowest_over_fastest = at_least(1).check(
        "slowest_over_fastest", slowest_over_fastest
    )
    seconds_per_task = more_than(0).check("seconds_per_task", seconds_per_task)
    bytes_per_second = BANDWIDTHS.check("bytes_per_second", bytes_per_second)
    availability = in_interval("(0, 1]").check("availability", availability)

    levels = min(num_levels, num_devices)
    step = (slowest_over_fastest - 1) / max(levels - 1, 1)
    by_level = [
        DeviceProfile(
            seconds_per_task * slowdown,
            bytes_per_second / slowdown,
            bytes_per_second / slowdown,
            jitter=jitter,
            dropout=dropout,
            watts=watts,
            joules_per_byte=joules_per_byte,
        )
        for slowdown in (1 + step * level for level in range(levels))
    ]
    always = [by_level[i * levels // num_devices] for i in range(num_devices)]
    if availability == 1:
        return always

    def presence(device: int) -> Availability:
        phase = numpy_generator(seed, "phase", device).random()
        period = _TASKS_PER_PERIOD * seconds_per_task
        return Availability.from_share(availability, period, phase)

    return [
        replace(profile, availability=presence(device))
        for device, profile in enumerate(always)
    ]
