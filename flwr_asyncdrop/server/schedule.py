"""Global learning-rate schedules, advanced by the fastest device alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.profiles import TaskCost


class Schedule(Protocol):
    """How the learning rate changes during a run."""

    def factor(self, fastest_updates: int) -> float:
        """Return the factor on the initial learning rate, in (0, 1].

        `fastest_updates` counts the updates that were merged from the fastest rank.
        """


ScheduleBuilder = Callable[[Sequence[TaskCost]], Schedule]
"""A schedule from the cost of the first task of each speed rank, fastest first."""


@dataclass(frozen=True)
class StepDecay:
    """Divide the learning rate when the fastest device reaches a milestone.

    In Alg. 3 of the paper one schedule serves all devices: the fastest advances it,
    and everybody trains with the current value.

    Attributes
    ----------
    milestones : tuple of int
        Updates of the fastest rank after which the rate is multiplied by `gamma`,
        ascending; none by default, for a constant rate.
    gamma : float
        Factor in ``(0, 1]``.
    """

    milestones: tuple[int, ...] = ()
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if list(self.milestones) != sorted(self.milestones):
            raise ConfigError(f"milestones={self.milestones!r} must ascend")
        if not 0 < self.gamma <= 1:
            raise ConfigError(f"gamma={self.gamma!r} must lie in (0, 1]")

    def factor(self, fastest_updates: int) -> float:
        """Return the factor on the initial learning rate."""
        reached = sum(fastest_updates >= milestone for milestone in self.milestones)
        return float(self.gamma**reached)
