"""The figures that compare: accuracy against time, and against bytes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from flwr_asyncdrop.readable import byte_unit
from flwr_asyncdrop.report.looks import looks
from flwr_asyncdrop.report.runlog import Curve, Point
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.style import GREY
from flwr_asyncdrop.report.target import CONTROL

_Cost = Callable[[Point], float]


@dataclass(frozen=True)
class Band:
    """Curves of several seeds as one: their mean, and where they lie.

    Attributes
    ----------
    x, mean, low, high : ndarray of float64
        All of one shape; `low` and `high` are the lowest and highest seed.
    """

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def band(curves: Iterable[Curve], cost: _Cost) -> Band:
    """Put the curves of several seeds together.

    Between two evaluations a curve is taken to be straight. The band ends where the
    first of the curves does.

    Parameters
    ----------
    curves : iterable of Curve
        At least one.
    cost : callable
        What the x axis shows of a point.
    """
    costs, values = [], []
    for curve in curves:
        costs.append([cost(point) for point in curve.points])
        values.append([point.value for point in curve.points])
    x = np.unique(np.concatenate(costs))
    x = x[(x >= max(c[0] for c in costs)) & (x <= min(c[-1] for c in costs))]
    pairs = zip(costs, values, strict=True)
    seeds = np.array([np.interp(x, xs, ys) for xs, ys in pairs])
    return Band(x, seeds.mean(axis=0), seeds.min(axis=0), seeds.max(axis=0))


def draw_against_time(
    axes: Axes, series: Sequence[Series], target: float, time_label: str
) -> None:
    """Draw the accuracy of every series against time, and the target."""
    _draw(axes, series, target, lambda point: point.time)
    axes.set_xlabel(time_label)


def draw_against_bytes(axes: Axes, series: Sequence[Series], target: float) -> None:
    """Draw the accuracy of every series against the bytes sent, and the target."""
    unit, size = byte_unit(_reach(series, lambda point: point.num_bytes))
    _draw(axes, series, target, lambda point: point.num_bytes / size)
    axes.set_xlabel(f"sent and received ({unit})")


def _draw(axes: Axes, series: Sequence[Series], target: float, cost: _Cost) -> None:
    styles = looks(series)
    for one in series:
        if not one.curves:
            continue
        line, look = band(one.curves.values(), cost), styles[one.label]
        axes.fill_between(
            line.x, line.low, line.high, color=look.color, alpha=0.13, linewidth=0
        )
        axes.plot(
            line.x,
            line.mean,
            color=look.color,
            linestyle=look.dashes,
            linewidth=look.width,
            label=one.label,
        )
    axes.axhline(target, color=GREY, linewidth=0.8, linestyle=(0, (2, 2)), zorder=1)
    axes.annotate(
        f"target {target:.1%}",
        (0, target),
        xycoords=("axes fraction", "data"),
        xytext=(3, 2),
        textcoords="offset points",
        fontsize="small",
        color=GREY,
    )
    axes.set_xlim(0, _reach(series, cost))
    axes.set_ylabel("accuracy")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _reach(series: Sequence[Series], cost: _Cost) -> float:
    """Return where the x axis ends: with the last that is not the slow control."""
    ends = {
        one.algorithm: max(cost(curve.final) for curve in one.curves.values())
        for one in series
        if one.curves
    }
    others = [end for algorithm, end in ends.items() if algorithm != CONTROL]
    return max(others or ends.values())
