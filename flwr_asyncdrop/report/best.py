"""Which rows of a comparison are the best in a column."""

from collections.abc import Callable, Mapping
from statistics import fmean

from flwr_asyncdrop.report.comparison import Comparison, Row
from flwr_asyncdrop.report.intervals import interval

_Values = Mapping[int, float]


def best_scores(
    comparison: Comparison, values: Callable[[Row], _Values]
) -> tuple[bool, ...]:
    """Return which rows have the best mean of some values of the metric, by seed.

    As in `best_costs`, with the direction of the metric.
    """
    return _best(comparison, values, least=comparison.target.metric.falls)


def best_costs(
    comparison: Comparison, values: Callable[[Row], _Values]
) -> tuple[bool, ...]:
    """Return which rows have the least mean of some values by seed.

    Only rows that have a value for each of their complete runs can be best: the mean of
    the luckier seeds is no winner. With seeds enough for an interval, a row from which
    the best one cannot be told apart seed by seed counts as best, too. Nobody is best
    of one.
    """
    return _best(comparison, values, least=True)


def _best(
    comparison: Comparison, values: Callable[[Row], _Values], *, least: bool
) -> tuple[bool, ...]:
    complete = {}
    for place, row in enumerate(comparison.rows):
        of_row = values(row)
        if row.outcomes and of_row.keys() == row.outcomes.keys():
            complete[place] = of_row
    if sum(bool(row.outcomes) for row in comparison.rows) < 2 or not complete:
        return tuple(False for _ in comparison.rows)
    means = {place: fmean(of_row.values()) for place, of_row in complete.items()}
    top = min(means.values()) if least else max(means.values())
    winner = next(place for place, mean in means.items() if mean == top)
    return tuple(
        place in means
        and (means[place] == top or _same(complete[place], complete[winner]))
        for place in range(len(comparison.rows))
    )


def _same(one: _Values, other: _Values) -> bool:
    """Return whether an interval of the differences, seed by seed, holds zero."""
    both = sorted(one.keys() & other.keys())
    if not both:
        return False
    found = interval([one[seed] - other[seed] for seed in both], fmean)
    return found.low is not None and not found.is_clear
