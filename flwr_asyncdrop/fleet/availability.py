"""When a simulated device is there: intervals that repeat with a period."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.parameters import Range, in_interval, plain
from flwr_asyncdrop.readable import printable, shown

_LEAST_SHARE = 1e-9  # a shorter stretch is lost in the rounding of times
_PERIODS = 1e6  # that many at least go by before a stretch may be lost

_LENGTHS = Range(lambda v: 0 < v < math.inf, "positive and finite")
_SHARES = in_interval(f"[{_LEAST_SHARE:g}, 1)")
_PHASES = in_interval("[0, 1)")


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
        # Numbers of NumPy's would round all times to their own precision.
        period = _LENGTHS.check("period", self.period)
        intervals = _pairs(self.intervals)
        object.__setattr__(self, "period", period)
        object.__setattr__(self, "intervals", intervals)
        if not intervals:
            raise ConfigError("a device without intervals would never be there")
        before = 0.0
        for start, end in intervals:
            if not before <= start < end <= period:
                raise ConfigError(
                    f"interval {start!r}-{end!r}: intervals must ascend, without "
                    f"overlaps, within [0, {period!r}]; split one that passes the end "
                    "of the period in two"
                )
            before = end
        longest = max(end - start for start, end in intervals)
        if longest < math.ulp(_PERIODS * period):
            raise ConfigError(
                f"intervals={shown(intervals)} are too short for period="
                f"{period!r}: make one at least {_LEAST_SHARE:g} of it, or it is "
                "lost in the rounding of times"
            )

    @classmethod
    def from_share(cls, share: float, period: float, phase: float) -> Self:
        """Return one stretch of presence a period.

        The device is there for `share` of the time, in ``[1e-9, 1)``, from `phase` on,
        a part of the period in ``[0, 1)``. A stretch that passes the end of the period
        is continued at its beginning.
        """
        share = _SHARES.check("share", share)
        period = _LENGTHS.check("period", period)
        phase = _PHASES.check("phase", phase)
        start, end = phase * period, (phase + share) * period
        if end <= period:
            return cls(period, ((start, end),))
        # The two may meet if the share is almost 1, as far as rounding goes.
        first_end = end - period
        return cls(period, ((0.0, first_end), (max(start, first_end), period)))

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


def _pairs(intervals: object) -> tuple[tuple[float, float], ...]:
    """Return intervals as Python's own numbers; ConfigError for what is none."""
    try:
        if not isinstance(intervals, Iterable):
            raise TypeError
        pairs = tuple((plain(start), plain(end)) for start, end in intervals)
        if not all(isinstance(each, int | float) for pair in pairs for each in pair):
            raise TypeError
    except (TypeError, ValueError):
        raise ConfigError(
            f"intervals={printable(shown(intervals))} must be pairs of numbers, start "
            "and end, e.g. ((0.0, 25200.0),)"
        ) from None
    return pairs
