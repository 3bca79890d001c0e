"""When a simulated device is there: intervals that repeat with a period."""

import math
from dataclasses import dataclass
from typing import Self

from flwr_asyncdrop.exceptions import ConfigError, RunError

_LEAST_SHARE = 1e-9  # a shorter stretch is lost in the rounding of times
_PERIODS = 1e6  # that many at least go by before a stretch may be lost


@dataclass(frozen=True)
class Availability:
    """A pattern of presence that repeats, e.g. a phone's nights on a charger.

    Attributes
    ----------
    period : float
        Virtual seconds after which the pattern repeats; it begins at 0.
    intervals : tuple of (float, float)
        When the device is there within a period: ``start <= time < end``, in virtual
        seconds, ascending and disjoint, within ``[0, period]``; at least one, and one
        that the rounding of times does not swallow in the first million periods.
    """

    period: float
    intervals: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not 0 < self.period < math.inf:
            raise ConfigError(f"period={self.period!r} must be positive and finite")
        if not self.intervals:
            raise ConfigError("a device without intervals would never be there")
        before = 0.0
        for start, end in self.intervals:
            if not before <= start < end <= self.period:
                raise ConfigError(
                    f"intervals={self.intervals!r} must ascend, without overlaps, "
                    f"within [0, {self.period!r}]"
                )
            before = end
        longest = max(end - start for start, end in self.intervals)
        if longest < math.ulp(_PERIODS * self.period):
            raise ConfigError(
                f"intervals={self.intervals!r} are too short for period="
                f"{self.period!r}: make one at least {_LEAST_SHARE:g} of it, or it is "
                "lost in the rounding of times"
            )

    @classmethod
    def from_share(cls, share: float, period: float, phase: float) -> Self:
        """Return one stretch of presence a period.

        The device is there for `share` of the time, in ``[1e-9, 1)``, from `phase` on,
        a part of the period in ``[0, 1)``. A stretch that passes the end of the period
        is continued at its beginning.
        """
        if not _LEAST_SHARE <= share < 1:
            raise ConfigError(f"share={share!r} must lie in [{_LEAST_SHARE:g}, 1)")
        if not 0 <= phase < 1:
            raise ConfigError(f"phase={phase!r} must lie in [0, 1)")
        start, end = phase * period, (phase + share) * period
        if end <= period:
            return cls(period, ((start, end),))
        return cls(period, ((0.0, end - period), (start, period)))

    def earliest(self, time: float) -> float:
        """Return the first moment from `time` on at which the device is there.

        It is `time` itself, exactly, if the device is there then. RunError if the time
        is so large that rounding leaves nothing of a period.
        """
        cycle = math.floor(time / self.period)
        # Neighbours on both sides: the quotient may be a rounding off.
        windows = (
            (number * self.period + start, number * self.period + end)
            for number in range(cycle - 1, cycle + 3)
            for start, end in self.intervals
        )
        moments = [max(start, time) for start, end in windows if time < end]
        if not moments:
            raise RunError(
                f"after {time:g} s a device with a period of {self.period:g} s is "
                "never there again, as its intervals are lost in the rounding of "
                "times: make tasks shorter, or its period longer"
            )
        return min(moments)
