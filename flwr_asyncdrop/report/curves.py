"""Curves of the headline metric: of one run, and of several seeds as one."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from flwr_asyncdrop.report.looks import Look
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.runlog import Curve, Point, RunLog
from flwr_asyncdrop.report.style import BLUE, ORANGE, say_none
from flwr_asyncdrop.report.thinning import MOST_BUCKETS, shown

Cost = Callable[[Point], float]
"""What an x axis shows of a point."""

_ONE_RUN = Look(BLUE, "-", 2.6)
_MOST_DECIMALS = 6  # of a per cent: steps of 1e-8


@dataclass(frozen=True)
class Band:
    """Curves of several seeds as one: mean, lowest and highest, each shape (x,)."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def thinned(self, buckets: int = MOST_BUCKETS) -> Self:
        """Return as many of its points as can be seen."""
        few = shown(self.x, self.mean, self.low, self.high, buckets=buckets)
        return type(self)(self.x[few], self.mean[few], self.low[few], self.high[few])


def band(curves: Iterable[Curve], cost: Cost) -> Band:
    """Put the curves of several seeds together; `cost` is what the x axis shows.

    Between two evaluations a curve is taken to be straight. The band ends where the
    first of the curves does. Of curves that have no place in common it has, at each
    place, those that are there.
    """
    costs, values = [], []
    for curve in curves:
        costs.append([cost(point) for point in curve.points])
        values.append([point.value for point in curve.points])
    x = np.unique(np.concatenate(costs))
    common = (x >= max(c[0] for c in costs)) & (x <= min(c[-1] for c in costs))
    x = x[common] if common.any() else x
    seeds = np.array(
        [
            np.interp(x, xs, ys, left=np.nan, right=np.nan)
            for xs, ys in zip(costs, values, strict=True)
        ]
    )
    low, high = np.nanmin(seeds, axis=0), np.nanmax(seeds, axis=0)
    return Band(x, np.nanmean(seeds, axis=0), low, high)


def draw_metric(axes: Axes, log: RunLog) -> None:
    """Draw the metric of one run against time, with its best and its final value."""
    curve = log.curve
    if curve is None:
        axes.set_title("Accuracy")
        say_none(axes, "The run was not evaluated")
        return
    where = "on the server" if curve.by_server else "by the clients"
    axes.set_title(f"{curve.metric.heading}, evaluated {where}")
    axes.set_xlabel(log.time_label)
    draw_band(axes, [curve], lambda point: point.time, _ONE_RUN)
    name_metric(axes, curve.metric)
    words = {
        "best": curve.best,
        "diverged after" if curve.diverged else "final": curve.final,
    }
    if curve.best == curve.final and not curve.diverged:
        words = {"best and final": curve.best}
    for word, point in words.items():
        best = word.startswith("best")
        axes.scatter(
            [point.time],
            [point.value],
            marker="*" if best else "o",
            s=420 if best else 110,
            color=ORANGE if best else BLUE,
            edgecolor="white",
            linewidth=1.2,
            zorder=3,
            label=f"{word} {curve.metric.text(point.value)}",
        )
    axes.margins(x=0.03, y=0.08)
    axes.legend(loc="best", handletextpad=0.4)


def draw_band(
    axes: Axes, curves: Sequence[Curve], cost: Cost, look: Look, **more: Any
) -> None:
    """Draw the mean of some curves, shaded from the lowest to the highest of them.

    A single point is a dot.
    """
    line = band(curves, cost).thinned()
    if len(curves) > 1:
        axes.fill_between(
            line.x, line.low, line.high, color=look.color, alpha=0.13, linewidth=0
        )
    axes.plot(
        line.x,
        line.mean,
        color=look.color,
        linestyle=look.dashes,
        linewidth=look.width,
        marker="o" if len(line.x) == 1 else "None",  # which has no length
        **more,
    )


def name_metric(axes: Axes, metric: Metric) -> None:
    """Label the y axis with a metric."""
    axes.set_ylabel(metric.title)
    if metric.is_share:
        axes.yaxis.set_major_formatter(_Percent(1.0))


class _Percent(PercentFormatter):
    """Shares in per cent, with as many decimals as the places of the ticks have."""

    def set_locs(self, locs: list[float]) -> None:
        """Take the places of the ticks, which are multiples of a step."""
        super().set_locs(locs)
        values = 100 * np.asarray(locs, dtype=np.float64)
        self.decimals = next(
            (n for n in range(_MOST_DECIMALS) if _are_whole(values * 10**n)),
            _MOST_DECIMALS,
        )


def _are_whole(values: NDArray[np.float64]) -> bool:
    return bool(np.allclose(values, np.round(values), rtol=0, atol=1e-6))
