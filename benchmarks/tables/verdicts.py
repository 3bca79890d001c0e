"""One of ours beside the best of the others, ground by ground."""

from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Final

from benchmarks.tables.archives import OURS
from benchmarks.tables.cells import beside
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report.comparison import Comparison, Row, compare
from flwr_asyncdrop.report.intervals import Interval
from flwr_asyncdrop.report.runlog import Point
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.target import Target

SHARES: Final = (0.95, 0.99)
_GOAL: Final = 0.75


def verdict(grounds: Mapping[str, tuple[Series, ...]], label: str) -> Iterator[str]:
    """Yield one of ours beside the best of the others, ground by ground."""
    heads = ["final accuracy, in points"]
    heads += [f"{cost} to {share:g}" for cost in ("time", "bytes") for share in SHARES]
    yield f"| | {' | '.join(heads)} |"
    yield f"| --- |{' --- |' * len(heads)}"
    for name, series in grounds.items():
        goals = [goal(series, share) for share in SHARES]
        cells = [final_beside_best(series, goals[0], label)]
        for overhead, spent in (
            ("time_overhead", lambda point: point.time),
            ("byte_overhead", lambda point: point.num_bytes),
        ):
            cells += [
                cost_beside_best(series, each, label, overhead, spent) for each in goals
            ]
        yield f"| `{name}` | {' | '.join(cells)} |"


def final_beside_best(series: tuple[Series, ...], target: Target, label: str) -> str:
    """Return by how much ours ends higher than the best of the others."""
    rows = compare(series, target).rows
    finals = {
        row.label: target.metric.goodness(row.final.mean)
        for row in rows
        if row.final is not None and row.algorithm not in OURS
    }
    best = max(finals, key=finals.__getitem__, default=None)
    if best is None:
        return "every other one diverged"
    row = _row(compare(series, target, best), label)
    return "diverged" if row.diverged else f"{beside(row)} over `{best}`"


def cost_beside_best(
    series: tuple[Series, ...],
    target: Target,
    label: str,
    overhead: str,
    cost: Callable[[Point], float],
) -> str:
    """Return ours over the least of the others, of those that most seeds reached.

    It meets the goal if it gets there with as many seeds.
    """

    def mean(row: Row) -> float:
        return fmean(map(cost, row.arrivals.values()))

    rows = compare(series, target).rows
    others = [row for row in rows if row.algorithm not in OURS]
    reached = [row for row in others if row.arrivals]
    if not reached:
        return "no other reaches it"
    best = min(reached, key=lambda row: (-len(row.arrivals), mean(row)))
    row = _row(compare(series, target, best.label), label)
    found: Interval | None = getattr(row, overhead)
    if found is None:
        return "not reached"
    ratio = 1 + found.value
    text = f"{ratio:.2f}x"
    if found.low is not None and found.high is not None:
        text += f" [{1 + found.low:.2f}, {1 + found.high:.2f}]"
    if ratio <= _GOAL and len(row.arrivals) >= len(best.arrivals):
        text = f"**{text}**"
    seeds = len(row.outcomes)
    own = f"{len(row.arrivals)}/{seeds}" if len(row.arrivals) < seeds else ""
    theirs = f" ({len(best.arrivals)}/{seeds})" if len(best.arrivals) < seeds else ""
    return f"{text}{own and f' ({own})'} of `{best.label}`{theirs}"


def _row(comparison: Comparison, label: str) -> Row:
    return next(row for row in comparison.rows if row.label == label)


def goal(series: tuple[Series, ...], share: float) -> Target:
    """Return a share of the best final value of those that are not ours.

    One that diverged with a seed has none.
    """
    others = [each for each in series if each.algorithm not in OURS]
    metric = next(iter(others[0].curves.values())).metric
    finals = {
        each.label: fmean(curve.final.value for curve in each.curves.values())
        for each in others
        if not any(curve.diverged for curve in each.curves.values())
    }
    if not finals:
        raise DataError("every other one diverged: there is no goal to take a share of")
    best = max(finals, key=lambda label: metric.goodness(finals[label]))
    value = finals[best] / share if metric.falls else finals[best] * share
    return Target(metric, value, f"{share:g} of {best}'s final {metric.title}")
