"""Successive halving: many settings for a short time, the best of them for longer.

K. Jamieson and A. Talwalkar, *Non-stochastic Best Arm Identification and Hyperparameter
Optimization*, AISTATS 2016.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

from flwr_asyncdrop.app.config import Value
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.seeding import numpy_generator

_MOST_COMBINATIONS = 2**63 - 1  # that NumPy can draw from

Values = dict[str, Value]
"""What a candidate sets: a value for each key that is searched."""


@dataclass(frozen=True)
class Rung:
    """A step of the race: of how many candidates, and how long their runs are.

    A run is one `division`-th as long as a whole one.
    """

    division: int
    candidates: int


@dataclass(frozen=True)
class Result:
    """A candidate and how good its runs were, one number a seed; None if one failed.

    Numbers are the larger the better. `means` says how good they were all the time, if
    that was asked for.
    """

    values: Values
    finals: tuple[float | None, ...]
    means: tuple[float, ...] = ()

    @property
    def score(self) -> float:
        """The mean; minus infinity if a run failed, or has no number."""
        numbers = [-math.inf if n is None or math.isnan(n) else n for n in self.finals]
        return fmean(numbers)

    @property
    def mean(self) -> float:
        """How good it was all the time; minus infinity if nobody asked."""
        return fmean(self.means) if self.means else -math.inf


def rungs(candidates: int, eta: int, count: int, last: int = 1) -> list[Rung]:
    """Return `count` rungs; runs of the last one are a `last`-th of a whole one.

    From one to the next, runs are `eta` times as long, and of the candidates one in
    `eta` stays, rounded up, but no less than two: one alone decides nothing.
    """
    least = min(candidates, 2)
    return [
        Rung(
            last * eta ** (count - 1 - place),
            max(math.ceil(candidates / eta**place), least),
        )
        for place in range(count)
    ]


def candidates(search: Mapping[str, Sequence[Value]], most: int) -> list[Values]:
    """Return combinations of values: all, or `most` of them drawn at random.

    They stay in the order of the grid. The same search draws the same ones. ConfigError
    for more than can be drawn from.
    """
    size = math.prod(map(len, search.values()))
    if size <= most:
        grid = product(*search.values())
        return [dict(zip(search, each, strict=True)) for each in grid]
    if size > _MOST_COMBINATIONS:
        raise ConfigError(f"{size:,} combinations are too many: search less")
    generator = numpy_generator(0, "candidates", size, most)
    chosen = generator.choice(size, most, replace=False)
    return [_combination(search, place) for place in sorted(chosen.tolist())]


def _combination(search: Mapping[str, Sequence[Value]], place: int) -> Values:
    """Return the combination at a place of the grid, which may be too large to make."""
    found: list[tuple[str, Value]] = []
    for key, values in reversed([*search.items()]):
        place, at = divmod(place, len(values))
        found.append((key, values[at]))
    return dict(reversed(found))


def best(results: Sequence[Result], count: int) -> list[Result]:
    """Return the best of some results, best first; the earlier one of equals.

    Those with `means` come first, by these. Those of which a run failed are never among
    them.
    """
    sound = [result for result in results if result.score > -math.inf]
    return sorted(sound, key=lambda result: (-result.mean, -result.score))[:count]


def tied(results: Sequence[Result], margin: float) -> list[bool]:
    """Return which of some results are within a margin of the best one."""
    top = max(result.score for result in results)
    return [result.score >= top - margin for result in results]


def at_edge(chosen: Values, search: Mapping[str, Sequence[Value]]) -> list[str]:
    """Return the keys of which the chosen number is the least or largest searched.

    A better one may lie beyond. A key with one value was not searched.
    """
    return [
        key
        for key, values in search.items()
        if len(values) > 1
        and all(isinstance(each, int | float) for each in values)
        and not any(isinstance(each, bool) for each in values)
        and chosen[key] in (min(values), max(values))
    ]
