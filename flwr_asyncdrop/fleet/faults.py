"""How long the server waits for a device, and what follows a failure."""

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from flwr_asyncdrop.parameters import Range, one_of, whole_from

LatePolicy = Literal["merge", "discount", "drop"]
"""What happens to a reply that comes after its deadline."""

LATE_POLICIES = MappingProxyType({"merge": 1.0, "discount": 0.5, "drop": 0.0})
"""Factor on the weight of a late update, by policy; 0 is not merged at all."""

_LONGEST = 10**9  # beyond, times are no floats
DEADLINES = Range(
    lambda factor: factor == 0 or 1 <= factor <= _LONGEST,
    f"at least 1 (times the expected duration of a task) and at most {_LONGEST}, or 0 "
    "for none",
)
"""What a deadline may be."""

_MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class FaultPolicy:
    """How the server treats devices that are late or fail.

    Attributes
    ----------
    deadline : float
        A task is overdue after its expected duration times this, in ``[1, 10^9]``; 0
        for no deadline. It is given up after twice as long.
    late : {"merge", "discount", "drop"}
        Whether an update that comes in between counts in full, by half or not at all.
    quarantine_after : int
        Failures in a row after which a device gets no tasks for a while; 0 for never.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    deadline: float = 3.0
    late: LatePolicy = "discount"
    quarantine_after: int = 3

    def __post_init__(self) -> None:
        DEADLINES.check("deadline", self.deadline)
        one_of(*LATE_POLICIES).check("late", self.late)
        whole_from(0).check("quarantine_after", self.quarantine_after)

    @property
    def late_weight(self) -> float:
        """Factor on the weight of a late update; 0 if it is not merged."""
        return LATE_POLICIES[self.late]

    def waits(
        self, expected: float | None, longest: float = math.inf
    ) -> tuple[float, float]:
        """Return the seconds until a task is overdue, and until it is given up.

        `expected` is None if nothing is known of it; neither result exceeds `longest`.
        """
        if self.deadline == 0 or expected is None:
            return longest, longest
        overdue = self.deadline * expected
        return min(overdue, longest), min(2 * overdue, longest)

    def quarantine(self, failures: int, expected: float) -> float:
        """Return the seconds for which a device gets no task after a failure.

        ``2^n`` times what a task takes, where ``n`` counts the failures in a row from
        the one that began the quarantine, up to 64 times; 0 before it.
        """
        doublings = failures - self.quarantine_after
        if self.quarantine_after == 0 or doublings < 0:
            return 0.0
        return float(2 ** min(doublings, _MOST_DOUBLINGS) * expected)
