"""Global learning-rate schedules: one serves all devices."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.parameters import Range, in_interval

_FINITE = Range(lambda v: -math.inf < v < math.inf, "finite")


class Schedule(Protocol):
    """How the learning rate changes during a run."""

    def factor(self, fastest_updates: int, seconds: float) -> float:
        """Return the factor on the initial learning rate of a task, at least 0.

        It is asked when the task is sent: `fastest_updates` counts the updates that
        were merged from the fastest rank, `seconds` have passed on the run's clock.
        """


ScheduleBuilder = Callable[[Sequence[TaskCost], int], Schedule]
"""A schedule from the cost of the first task of each speed rank, fastest first, and
the number of devices that the run begins with."""


@dataclass(frozen=True)
class StepDecay:
    """Multiply the learning rate by `gamma` at each milestone.

    In Alg. 3 of the paper one schedule serves all devices: the fastest advances it,
    and everybody trains with the current value. Counted in updates, a run whose tasks
    are shorter decays earlier on the clock; counted in seconds, all runs decay at the
    same moment.

    Attributes
    ----------
    milestones : tuple of float
        When the rate is multiplied by `gamma`, in `unit`, ascending; none by default,
        for a constant rate. A task has the rate of the moment at which it is sent.
    gamma : float
        Factor in ``(0, 1]``.
    unit : {"updates", "seconds"}
        What milestones count: merged updates of the fastest rank, or seconds on the
        run's clock, which are virtual with a simulated fleet and real without.

    Raises
    ------
    ConfigError
        If a value is out of range, or milestones do not ascend.
    """

    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    unit: Literal["updates", "seconds"] = "updates"

    def __post_init__(self) -> None:
        given: object = self.milestones
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ConfigError(f"milestones={given!r} must be a list of numbers")
        milestones = tuple(_FINITE.check("a milestone", each) for each in given)
        if list(milestones) != sorted(milestones):
            raise ConfigError(f"milestones={milestones!r} must ascend")
        object.__setattr__(self, "milestones", milestones)
        gamma = in_interval("(0, 1]").check("gamma", self.gamma)
        object.__setattr__(self, "gamma", gamma)
        if self.unit not in ("updates", "seconds"):
            raise ConfigError(f"unit={self.unit!r} must be 'updates' or 'seconds'")

    @property
    def goes_by_time(self) -> bool:
        """Whether the rate changes with the seconds on the run's clock."""
        return self.unit == "seconds" and bool(self.milestones)

    def factor(self, fastest_updates: int, seconds: float = 0.0) -> float:
        """Return the factor on the initial learning rate."""
        now = seconds if self.unit == "seconds" else fastest_updates
        reached = sum(now >= milestone for milestone in self.milestones)
        return float(self.gamma**reached)
