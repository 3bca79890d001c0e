"""How long the server waits for a device, and how it treats those that let it down."""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from flwr_asyncdrop.exceptions import ConfigError

LatePolicy = Literal["merge", "discount", "drop"]
"""What becomes of a reply that comes after its deadline."""

LATE_POLICIES = MappingProxyType({"merge": 1.0, "discount": 0.5, "drop": 0.0})
"""Factor on the weight of a late update, by policy; 0 is not merged at all."""

_MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class FaultPolicy:
    """What the server puts up with.

    Attributes
    ----------
    deadline : float
        Times its expected duration after which a task is overdue, at least 1; 0 for
        no deadline. It is given up after twice as long.
    late : {"merge", "discount", "drop"}
        Whether an update that comes between the two counts in full, by half or not
        at all.
    quarantine_after : int
        Failures in a row for which a device is left alone for a while; 0 for never.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    deadline: float = 3.0
    late: LatePolicy = "discount"
    quarantine_after: int = 3

    def __post_init__(self) -> None:
        if not (self.deadline == 0 or 1 <= self.deadline < math.inf):
            raise ConfigError(
                f"deadline={self.deadline!r} must be at least 1 (times the expected "
                "duration of a task), or 0 for none"
            )
        if self.late not in LATE_POLICIES:
            known = ", ".join(LATE_POLICIES)
            raise ConfigError(f"late={self.late!r} must be one of {known}")
        if self.quarantine_after < 0:
            raise ConfigError(
                f"quarantine_after={self.quarantine_after!r} must be at least 0"
            )

    @property
    def late_weight(self) -> float:
        """Factor on the weight of a late update; 0 if it is not merged."""
        return LATE_POLICIES[self.late]

    def waits(
        self, expected: float | None, longest: float = math.inf
    ) -> tuple[float, float]:
        """Return the seconds until a task is overdue, and until it is given up.

        Parameters
        ----------
        expected : float or None
            Seconds that the task should take; None if nothing is known.
        longest : float
            Seconds that no task may exceed.
        """
        if self.deadline == 0 or expected is None:
            return longest, longest
        overdue = self.deadline * expected
        return min(overdue, longest), min(2 * overdue, longest)

    def quarantine(self, failures: int, expected: float) -> float:
        """Return the seconds for which a device gets no task after a failure.

        ``2^n`` times what a task takes, where ``n`` counts the failures in a row from
        the one that brought the device into quarantine, up to 64 times; 0 before it.

        Parameters
        ----------
        failures : int
            Tasks that the device has failed in a row.
        expected : float
            Seconds that one should take.
        """
        doublings = failures - self.quarantine_after
        if self.quarantine_after == 0 or doublings < 0:
            return 0.0
        return float(2 ** min(doublings, _MOST_DOUBLINGS) * expected)
