"""The panels that show the headline metric: of one run, and of several algorithms."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from flwr_asyncdrop.readable import byte_unit
from flwr_asyncdrop.report.looks import Look, looks
from flwr_asyncdrop.report.panels import add_bytes_axis
from flwr_asyncdrop.report.runlog import Curve, Metric, Point, RunLog
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.style import BLUE, GREY, ORANGE, say_none
from flwr_asyncdrop.report.target import CONTROL, Target
from flwr_asyncdrop.report.thinning import MOST_BUCKETS, shown

_Cost = Callable[[Point], float]

_MOST_MARKERS = 60
_ONE_RUN = Look(BLUE, "-", 1.4)


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


def band(curves: Iterable[Curve], cost: _Cost) -> Band:
    """Put the curves of several seeds together; `cost` is what the x axis shows.

    Between two evaluations a curve is taken to be straight. The band ends where the
    first of the curves does.
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


def draw_metric(axes: Axes, log: RunLog) -> None:
    """Draw the metric of one run against time, and on top the bytes sent by then."""
    curve = log.curve
    if curve is None:
        axes.set_title("Accuracy")
        say_none(axes, "The run was not evaluated")
        return
    where = "on the server" if curve.source == "server" else "by the clients"
    axes.set_title(f"{curve.metric.title.capitalize()}, evaluated {where}")
    axes.set_xlabel(log.time_label)
    marker = "o" if len(curve.points) <= _MOST_MARKERS else ""
    _draw_band(axes, [curve], lambda point: point.time, _ONE_RUN, marker=marker)
    _name_metric(axes, curve.metric)
    words = {"best": curve.best, "final": curve.final}
    if curve.best == curve.final:
        words = {"best and final": curve.best}
    for word, point in words.items():
        best = word != "final"
        axes.scatter(
            [point.time],
            [point.value],
            marker="*" if best else "o",
            s=130 if best else 34,
            color=ORANGE if best else BLUE,
            edgecolor="white",
            linewidth=0.8,
            zorder=3,
            label=f"{word} {curve.metric.text(point.value)} at update {point.update:,}",
        )
    axes.margins(x=0.02, y=0.08)
    axes.legend(
        loc="upper right" if curve.metric.falls else "lower right", handletextpad=0.4
    )
    add_bytes_axis(axes, log)


def draw_against_time(axes: Axes, series: Sequence[Series], target: Target) -> None:
    """Draw the metric of every series against time, and the target."""
    log = next(log for one in series for log in one.runs.values())
    _draw_series(axes, series, target, lambda point: point.time)
    axes.set_xlabel(log.time_label)


def draw_against_bytes(axes: Axes, series: Sequence[Series], target: Target) -> None:
    """Draw the metric of every series against the bytes sent, and the target."""
    unit, size = byte_unit(_reach(series, lambda point: point.num_bytes))
    _draw_series(axes, series, target, lambda point: point.num_bytes / size)
    axes.set_xlabel(f"sent and received ({unit})")


def _draw_series(
    axes: Axes, series: Sequence[Series], target: Target, cost: _Cost
) -> None:
    styles = looks(series)
    for one in series:
        if one.curves:
            curves = list(one.curves.values())
            _draw_band(axes, curves, cost, styles[one.label], label=one.label)
    line: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (2, 2))}
    axes.axhline(target.value, zorder=1, **line)
    axes.annotate(
        f"target {target.metric.text(target.value, 1)}",
        (0, target.value),
        xycoords=("axes fraction", "data"),
        xytext=(3, 2),
        textcoords="offset points",
        fontsize="small",
        color=GREY,
    )
    axes.set_xlim(0, _reach(series, cost))
    _name_metric(axes, target.metric)


def _draw_band(
    axes: Axes, curves: Sequence[Curve], cost: _Cost, look: Look, **more: Any
) -> None:
    """Draw the mean of some curves, shaded from the lowest to the highest of them."""
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
        markersize=3,
        **more,
    )


def _name_metric(axes: Axes, metric: Metric) -> None:
    axes.set_ylabel(metric.title)
    if metric.is_share:
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
