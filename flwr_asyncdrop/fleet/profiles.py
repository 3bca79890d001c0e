"""What a simulated device can do, and what a task asks of it."""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.overrides import check_fields
from flwr_asyncdrop.parameters import (
    Range,
    at_least,
    in_interval,
    more_than,
)
from flwr_asyncdrop.readable import printable, shown

BYTES_PER_MEGABIT = 125_000
BYTES_PER_MEGABYTE = 1_000_000

BANDWIDTHS = Range(lambda v: v > 0, "more than 0")  # infinity is one
_RANGES = {
    "seconds_per_task": more_than(0),
    "bytes_per_second_down": BANDWIDTHS,
    "bytes_per_second_up": BANDWIDTHS,
    "latency": at_least(0),
    # 10 is far beyond sense, and still within the range of floats.
    "jitter": in_interval("[0, 10]"),
    "dropout": in_interval("[0, 1)"),
    "watts": at_least(0),
    "joules_per_byte": at_least(0),
}


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
        Speed ranks go by it alone, whatever the link.
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
