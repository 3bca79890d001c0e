"""The tables of the paper's protocol: as many updates for each algorithm."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from benchmarks.tables.cells import costs, points
from flwr_asyncdrop.report.comparison import compare
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.target import Target

_EXACT: Final = ",scale=false,score-vectors=false"


def paper_table(series: Sequence[Series], values: Sequence[float]) -> Iterator[str]:
    """Yield a table: a row an algorithm, and what it needs to each of the values."""
    curves = {each.label: each.curves.values() for each in series}
    metric = next(iter(curves[series[0].label])).metric
    goals = [Target(metric, value, "given") for value in values]
    tables = [compare(series, goal) for goal in goals]
    heads = [f"{metric.extreme}. {metric.title}", f"final {metric.title}", "ends at, s"]
    heads += [f"{unit} to {metric.text(v)}" for v in values for unit in ("s", "MB")]
    yield f"| algorithm | {' | '.join(heads)} |"
    yield f"| --- |{' --: |' * len(heads)}"
    for row, spent in zip(tables[0].rows, costs(tables), strict=True):
        end = fmean(curve.final.time for curve in curves[row.label])
        cells = [title(row.label), points(row.best), points(row.final), f"{end:,.0f}"]
        yield f"| {' | '.join(cells + spent)} |"


def cut_off_table(series: Sequence[Series], values: Sequence[float]) -> Iterator[str]:
    """Yield a table of runs that were ended early, one of each algorithm.

    Besides what each needed to each of the values, it has the best until the first of
    the runs was ended.
    """
    cut_off = [replace(each, runs=each.incomplete, incomplete={}) for each in series]
    curves = {each.label: curve for each in cut_off for curve in each.curves.values()}
    metric = curves[series[0].label].metric
    shared = min(curve.final.time for curve in curves.values())
    tables = [compare(cut_off, Target(metric, value, "given")) for value in values]
    heads = ["updates", "ended at, s"]
    heads += [f"{metric.extreme}. {metric.title} until {shared:,.0f} s"]
    heads += [f"{unit} to {metric.text(v)}" for v in values for unit in ("s", "MB")]
    yield f"| algorithm | {' | '.join(heads)} |"
    yield f"| --- |{' --: |' * len(heads)}"
    for row, spent in zip(tables[0].rows, costs(tables), strict=True):
        last = curves[row.label].final
        reached = (p.value for p in curves[row.label].points if p.time <= shared)
        best = f"{100 * max(reached, key=metric.goodness):.1f}"
        cells = [title(row.label), f"{last.update}", f"{last.time:,.0f}", best]
        yield f"| {' | '.join(cells + spent)} |"


def title(label: str) -> str:
    """Return the words for an algorithm, as it is or exactly as in the paper."""
    name = label.removesuffix(_EXACT)
    return f"`{name}`" if name == label else f"`{name}`, as in the paper"
