"""How many of the usual local steps a device trains in a task."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import Range, check_parameters, in_interval, parameter
from flwr_asyncdrop.state_dict import Stateless

MOST_WORK = 100.0
"""The most of the usual local steps that a task can have."""

_SHARES = Range(lambda v: 0 < v <= MOST_WORK, f"in (0, {MOST_WORK:g}]")


@dataclass(frozen=True)
class WorkContext:
    """What a work policy may go by.

    Attributes
    ----------
    device : int
        Index of the device in the fleet.
    rank, num_ranks : int
        Its place among the speed ranks, ``0 <= rank < num_ranks``; 0 is the fastest.
    capability : float
        Its speed over that of the fastest device, in (0, 1]; 1 while no speed is known.
    seconds : float or None
        What this task should take it with all local steps, with the submodel that it
        gets, on the run's clock. Of a real device by its tasks so far; None before the
        first.
    time : float
        Seconds since the start on the run's clock.
    round : int
        Round in which the task is dispatched, from 1.
    """

    device: int
    rank: int
    num_ranks: int
    capability: float
    seconds: float | None
    time: float
    round: int


class WorkPolicy(Stateless, ABC):
    """Says which share of the usual local steps a device trains.

    One that remembers something from task to task saves it by ``state_dict`` and
    ``load_state_dict``.
    """

    @abstractmethod
    def share(self, context: WorkContext) -> float:
        """Return the share, in (0, 100]: 0.5 for half of the local steps.

        A client rounds to whole steps, one at the least.
        """

    def learn(self, update: Update) -> None:
        """Learn from an update that has just been merged; nothing by default.

        It is only read.
        """


@dataclass(frozen=True)
class WorkBySpeed(WorkPolicy):
    """Every device trains as long as the fastest one.

    Attributes
    ----------
    least : float
        The smallest share of the usual local steps that a device trains, in (0, 1].
    most : float
        The share of the fastest one, at least `least`: with 5, in a fleet whose slowest
        device is five times as slow, that one trains all steps, and the fastest five
        times as many.
    """

    least: float = parameter(
        0.1, "smallest share of the local steps, in (0, 1]", in_interval("(0, 1]")
    )
    most: float = parameter(1.0, "share of the fastest device", _SHARES)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.most < self.least:
            raise ConfigError(f"most={self.most:g} is less than least={self.least:g}")

    def share(self, context: WorkContext) -> float:
        """Return the share of the fastest one, by how fast the device is beside it."""
        return max(self.least, self.most * context.capability)


def share_of(policy: WorkPolicy, context: WorkContext) -> float:
    """Return what a policy says; ConfigError if that is no share."""
    said: object = policy.share(context)
    return float(_SHARES.check(f"the share of {type(policy).__name__}", said))
