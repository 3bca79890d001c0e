"""What a device can do, and the fleets of devices that experiments simulate."""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.overrides import check_fields
from flwr_asyncdrop.parameters import (
    Range,
    at_least,
    in_interval,
    more_than,
    whole_from,
)
from flwr_asyncdrop.readable import printable, shown
from flwr_asyncdrop.seeding import numpy_generator

BYTES_PER_MEGABIT = 125_000
BYTES_PER_MEGABYTE = 1_000_000

_BANDWIDTHS = Range(lambda v: v > 0, "more than 0")  # infinity is one
_RANGES = {
    "seconds_per_task": more_than(0),
    "bytes_per_second_down": _BANDWIDTHS,
    "bytes_per_second_up": _BANDWIDTHS,
    "latency": at_least(0),
    # 10 is far beyond sense, and still within the range of floats.
    "jitter": in_interval("[0, 10]"),
    "dropout": in_interval("[0, 1)"),
    "watts": at_least(0),
    "joules_per_byte": at_least(0),
}
_TASKS_PER_PERIOD = 20


@dataclass(frozen=True)
class TaskCost:
    """What one task asks of a device.

    `compute` is the FLOPs of a training step of the submodel over those of the full
    model; the bytes are those of the arrays that travel.
    """

    compute: float
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class DeviceProfile:
    """One simulated device: how fast and how reliable it is.

    Attributes
    ----------
    seconds_per_task : float
        Time for the local steps of one task with the full model, in virtual seconds.
    bytes_per_second_down, bytes_per_second_up : float
        Bandwidth to the device and from it; infinite by default, which is what the
        paper's fleet assumes.
    latency : float
        Virtual seconds that a message is on its way beside the time for its bytes;
        every task pays it twice.
    jitter : float
        ``sigma`` of the log-normal factor ``exp(sigma z)``, ``z ~ N(0, 1)``, on the
        whole duration of every task. Its median is 1, its mean ``exp(sigma^2 / 2)``;
        with 0.25, two tasks of three take between 0.78 and 1.28 times the usual.
    dropout : float
        Probability that a task is lost on the device, in ``[0, 1)``. It takes its
        bytes down, nothing comes back, and it shows when the task is overdue.
    availability : Availability, optional
        When the device is there; always by default. It gets tasks only then. One that
        leaves while it trains finishes: its reply arrives as if it had stayed.
    watts : float
        Power while it computes, in joules per virtual second; 0 is not counted.
    joules_per_byte : float
        Energy of its radio, each way; 0 is not counted.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    seconds_per_task: float
    bytes_per_second_down: float = math.inf
    bytes_per_second_up: float = math.inf
    latency: float = 0.0
    jitter: float = 0.0
    dropout: float = 0.0
    availability: Availability | None = None
    watts: float = 0.0
    joules_per_byte: float = 0.0

    def __post_init__(self) -> None:
        for name, range_ in _RANGES.items():
            value = range_.check(name, getattr(self, name))
            object.__setattr__(self, name, value)
        if not isinstance(self.availability, Availability | None):
            raise ConfigError(
                f"availability={printable(shown(self.availability))} must be an "
                "Availability; speed_levels(availability=0.5) takes a share"
            )

    def duration(self, cost: TaskCost, noise: float = 0.0) -> float:
        """Return the virtual seconds from dispatch to arrival of a task.

        `noise` is the task's draw ``z`` from the standard normal distribution; 0 gives
        the median.
        """
        down = cost.bytes_down / self.bytes_per_second_down
        up = cost.bytes_up / self.bytes_per_second_up
        usual = self.seconds_per_task * cost.compute + down + up + 2 * self.latency
        return usual * math.exp(self.jitter * noise)

    def mean_duration(self, cost: TaskCost) -> float:
        """Return the virtual seconds that such tasks take on average."""
        return self.duration(cost, noise=self.jitter / 2)

    @property
    def counts_energy(self) -> bool:
        """Whether it is known what a task takes."""
        return self.watts > 0 or self.joules_per_byte > 0

    def energy(self, cost: TaskCost) -> float:
        """Return the joules of a task: of its FLOPs, and of its bytes both ways.

        Jitter makes no difference to them: it delays the same work.
        """
        computing = self.watts * self.seconds_per_task * cost.compute
        return computing + self.joules_per_byte * (cost.bytes_down + cost.bytes_up)


def checked_profiles(returned: object, size: int) -> tuple[DeviceProfile, ...]:
    """Return the profiles that a function of `size` devices has returned.

    Those of more devices are left out. ConfigError if it is something else, or if they
    are fewer.
    """
    given = returned if isinstance(returned, Iterable) else (returned,)
    profiles = tuple(islice(given, size))
    for kind in {type(each) for each in profiles}:
        check_fields(kind)
    wrong = [each for each in profiles if not isinstance(each, DeviceProfile)]
    if wrong or len(profiles) < size:
        what = printable(shown(wrong[0])) if wrong else f"{len(profiles)} profiles"
        raise ConfigError(
            f"fleet({size}) returned {what}: return a DeviceProfile for each of the "
            f"{size} devices, e.g. DeviceProfile(1.0)"
        )
    return profiles


def sha256_of(profiles: Iterable[DeviceProfile]) -> str:
    """Return a hash that tells a fleet from another one."""
    digest = hashlib.sha256()
    for profile in profiles:
        digest.update(f"{profile}\n".encode())
    return digest.hexdigest()


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
    bytes_per_second = _BANDWIDTHS.check("bytes_per_second", bytes_per_second)
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
