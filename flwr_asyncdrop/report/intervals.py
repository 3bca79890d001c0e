"""How far a figure of some seeds can be relied on: bootstrap intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from math import factorial, prod
from typing import TypeVar

import numpy as np

from flwr_asyncdrop.seeding import numpy_generator

FEWEST = 5
"""Seeds without which there is no interval: three say next to nothing."""

_LEVEL = 0.95
MOST_ALL = 8
"""Seeds up to which every resample is looked at."""

_DRAWS = 10_000
# Of the wider bound: what is less may be zero before the rounding of floats.
_ROUNDING = 1e-9

T = TypeVar("T")


@dataclass(frozen=True)
class Interval:
    """A figure of some seeds, and the 95 % interval around it; None of too few."""

    value: float
    low: float | None = None
    high: float | None = None

    @property
    def is_clear(self) -> bool:
        """Whether the interval lies on one side of zero."""
        if self.low is None or self.high is None:
            return False
        rounding = _ROUNDING * max(abs(self.low), abs(self.high))
        return self.low > rounding or self.high < -rounding


def interval(seeds: Sequence[T], figure: Callable[[Sequence[T]], float]) -> Interval:
    """Return a figure of some seeds with its percentile bootstrap interval.

    Seeds are drawn with replacement, as often as there are seeds: all ways to do that
    up to 8 seeds, 10,000 of them beyond, the same ones each time. What is compared seed
    by seed goes in as pairs: then what a seed does to both sides cancels out.
    B. Efron and R. Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 13.
    """
    value = figure(seeds)
    if len(seeds) < FEWEST:
        return Interval(value)
    if len(seeds) <= MOST_ALL:
        low, high = _all_resamples(seeds, figure)
    else:
        low, high = _some_resamples(seeds, figure)
    return Interval(value, low, high)


def _all_resamples(
    seeds: Sequence[T], figure: Callable[[Sequence[T]], float]
) -> tuple[float, float]:
    """Return the quantiles over all resamples, each as likely as its orders."""
    count = len(seeds)
    values, weights = [], []
    for chosen in combinations_with_replacement(range(count), count):
        values.append(figure([seeds[place] for place in chosen]))
        times = (chosen.count(place) for place in set(chosen))
        weights.append(factorial(count) // prod(map(factorial, times)))
    order = np.argsort(values, kind="stable")
    shares = np.cumsum(np.array(weights)[order]) / count**count
    # The least value that so much of the distribution does not exceed.
    places = np.searchsorted(shares, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    low, high = (values[order[place]] for place in places)
    return low, high


def _some_resamples(
    seeds: Sequence[T], figure: Callable[[Sequence[T]], float]
) -> tuple[float, float]:
    generator = numpy_generator(0, "bootstrap", len(seeds))
    drawn = generator.integers(len(seeds), size=(_DRAWS, len(seeds)))
    values = [figure([seeds[place] for place in places]) for places in drawn.tolist()]
    low, high = np.quantile(values, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)
