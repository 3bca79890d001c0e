"""What a device can do, and the fleets of devices that experiments simulate."""

from collections.abc import Sequence
from dataclasses import dataclass

from flwr_asyncdrop.exceptions import ConfigError

__all__ = ["DeviceProfile", "TaskCost", "speed_levels"]


@dataclass(frozen=True)
class TaskCost:
    """What one task asks of a device.

    Attributes
    ----------
    compute : float
        FLOPs of one training step of the submodel over those of the full model.
    bytes_down, bytes_up : int
        Size of the arrays that travel to the device and back, in bytes.
    """

    compute: float
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class DeviceProfile:
    """The speed of one simulated device.

    Attributes
    ----------
    seconds_per_task : float
        Time for the local steps of one task with the full model, in virtual seconds.
    bytes_per_second : float
        Bandwidth, the same in both directions; infinite by default, which is what
        the paper's fleet assumes.
    """

    seconds_per_task: float
    bytes_per_second: float = float("inf")

    def __post_init__(self) -> None:
        if not 0 < self.seconds_per_task < float("inf"):
            raise ConfigError(
                f"seconds_per_task={self.seconds_per_task!r} must be positive and "
                "finite"
            )
        if not self.bytes_per_second > 0:
            raise ConfigError(
                f"bytes_per_second={self.bytes_per_second!r} must be positive"
            )

    def duration(self, cost: TaskCost) -> float:
        """Return the virtual seconds from dispatch to arrival of a task."""
        transfer = (cost.bytes_down + cost.bytes_up) / self.bytes_per_second
        return self.seconds_per_task * cost.compute + transfer


def speed_levels(
    num_devices: int,
    *,
    num_levels: int = 8,
    slowest_over_fastest: float = 5.0,
    seconds_per_task: float = 1.0,
    bytes_per_second: float = float("inf"),
) -> Sequence[DeviceProfile]:
    """Build the paper's fleet: equally many devices at evenly spaced delays.

    Device ``i`` belongs to level ``i * num_levels // num_devices``; level 0 is the
    fastest. The paper simulates 8 levels of 13 devices, the slowest five times as
    slow as the fastest (section "Experimental setup").

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
        Bandwidth of the fastest level; slower levels get proportionally less.

    Returns
    -------
    sequence of DeviceProfile
        One profile per device, fastest first.
    """
    if num_devices < 1 or num_levels < 1:
        raise ConfigError(
            f"a fleet needs devices and levels, got num_devices={num_devices} and "
            f"num_levels={num_levels}"
        )
    if not slowest_over_fastest >= 1:
        raise ConfigError(
            f"slowest_over_fastest={slowest_over_fastest!r} must be at least 1"
        )
    levels = min(num_levels, num_devices)
    step = (slowest_over_fastest - 1) / max(levels - 1, 1)
    slowdowns = [1 + step * (i * levels // num_devices) for i in range(num_devices)]
    return [
        DeviceProfile(seconds_per_task * slowdown, bytes_per_second / slowdown)
        for slowdown in slowdowns
    ]
