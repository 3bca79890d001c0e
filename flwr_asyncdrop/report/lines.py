"""Algorithms against time and bytes: in one panel, or in a panel each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from flwr_asyncdrop.readable import byte_unit, three_digits
from flwr_asyncdrop.report.curves import Cost, band, draw_band, name_metric
from flwr_asyncdrop.report.labels import folded, spread_out
from flwr_asyncdrop.report.looks import Look, looks
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.style import GREY, drawable
from flwr_asyncdrop.report.target import CONTROL, Target

_MOST_IN_ONE: Final = 6  # lines
_LONGEST_BESIDE: Final = 22  # characters of a label beside its line
_WIDEST: Final = 5.2  # inches of a single panel
_PANEL: Final = 1.28  # inches high
_TEXT: Final = 0.058  # inches; the width of a small character
_RATIO: Final = 0.82  # height of a single panel's figure to its width
_SHARE: Final = 0.68  # of that height, what the axes have at least
_LINE: Final = 0.15  # inches from one label to the next
_OTHERS: Final = "#D9D9D9"
_ARROW: Final = "\N{RIGHTWARDS ARROW}"


@dataclass(frozen=True)
class Axis:
    """What the x axis shows, its label, and the unit in which it does."""

    cost: Cost
    label: str
    unit: str


def time_axis(series: Sequence[Series]) -> Axis:
    """Return the axis of the run's time."""
    log = next(log for one in series for log in one.runs.values())
    return Axis(lambda point: point.time, log.time_label, "s")


def bytes_axis(series: Sequence[Series]) -> Axis:
    """Return the axis of the bytes sent both ways, in a unit that fits."""
    unit, size = byte_unit(_reach(series, lambda point: point.num_bytes))
    label = f"sent and received ({unit})"
    return Axis(lambda point: point.num_bytes / size, label, unit)


def draw_lines(
    figure: Figure, series: Sequence[Series], target: Target, axis: Axis, width: float
) -> None:
    """Draw the metric of every series and the target, and set the figure's size.

    A few lines share a panel, with their labels beside their ends; of many lines, or of
    long labels, each has a panel, with the others in grey behind it.
    """
    drawn = [replace(one, label=drawable(one.label)) for one in series if one.curves]
    longest = max(len(one.label) for one in drawn)
    if len(drawn) <= _MOST_IN_ONE and longest <= _LONGEST_BESIDE:
        width = min(width, _WIDEST)
        height = _RATIO * width
        figure.set_size_inches(width, height)
        _draw_together(figure.add_subplot(), drawn, target, axis, height)
    else:
        _draw_apart(figure, drawn, target, axis, width)


def _draw_together(
    axes: Axes, series: Sequence[Series], target: Target, axis: Axis, height: float
) -> None:
    styles = looks(series)
    reach = _reach(series, axis.cost)
    for one in series:
        curves = list(one.curves.values())
        draw_band(axes, curves, axis.cost, styles[one.label], label=one.label)
    axes.set_xlim(0, reach or 1)
    name_metric(axes, target.metric)
    _draw_target(axes, target)
    beyond = [
        f"{_ARROW} {one.label} ends at {_end(one, target, axis)}"
        for one in series
        if _is_beyond(one, axis.cost, reach)
    ]
    axes.set_xlabel("\n".join([axis.label, *beyond]))
    _label_ends(axes, series, axis.cost, styles, height)


def _label_ends(
    axes: Axes,
    series: Sequence[Series],
    cost: Cost,
    styles: dict[str, Look],
    height: float,
) -> None:
    """Write the labels at the right, as near to the ends of the lines as they can.

    `height` is the figure's, in inches.
    """
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)
    reach = axes.get_xlim()[1]
    ends = []
    for one in series:
        line = band(one.curves.values(), cost)
        x = min(float(line.x[-1]), reach)
        ends.append((x, float(np.interp(x, line.x, line.mean))))
    gap = _LINE / (_SHARE * height)
    wanted = [(y - low) / (high - low) for _, y in ends]
    heights = spread_out(wanted, gap, 0.02, 0.98)
    for one, end, place in zip(series, ends, heights, strict=True):
        look = styles[one.label]
        more = f" {_ARROW}" if _is_beyond(one, cost, reach) else ""
        axes.annotate(
            one.label + more,
            end,
            xytext=(1.05, place),
            textcoords="axes fraction",
            va="center",
            fontsize="small",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "color": look.color,
                "linewidth": 0.7,
                "linestyle": (0, (1, 2)),
                "shrinkA": 1,
                "shrinkB": 0,
                "relpos": (0, 0.5),
            },
        )


def _draw_apart(
    figure: Figure,
    series: Sequence[Series],
    target: Target,
    axis: Axis,
    width: float,
) -> None:
    columns = 4 if width > 5 else 2
    rows = -(-len(series) // columns)
    room = int(width / columns / _TEXT) - 5
    titles = [folded(one.label, room) for one in series]
    lines = max(title.count("\n") for title in titles)
    figure.set_size_inches(width, rows * (_PANEL + 0.11 * lines) + 0.3)
    styles, reach = looks(series), _reach(series, axis.cost)
    # Matplotlib's own sharing looks at all panels for every line of each of them.
    panels = figure.subplots(rows, columns, squeeze=False)
    means = [band(one.curves.values(), axis.cost).thinned() for one in series]
    paths = [np.column_stack([line.x, line.mean]) for line in means]
    for place, axes in enumerate(panels.flat):
        if place >= len(series):
            axes.set_visible(False)
            continue
        one = series[place]
        others = paths[:place] + paths[place + 1 :]
        axes.add_collection(LineCollection(others, colors=_OTHERS, linewidths=0.7))
        curves = list(one.curves.values())
        draw_band(axes, curves, axis.cost, styles[one.label], label=one.label)
        axes.set_xlim(0, reach or 1)
        axes.xaxis.set_major_locator(MaxNLocator(4 if columns == 2 else 3))
        _style_panel(axes, titles[place])
        name_metric(axes, target.metric)
        axes.set_ylabel("")
        _draw_target(axes, target, named=place == 0)
        # The lowest panel of each column has the numbers of the x axis.
        axes.tick_params(
            labelbottom=place + columns >= len(series),
            labelleft=place % columns == 0,
        )
        if _is_beyond(one, axis.cost, reach):
            _note_in_panel(axes, f"{_ARROW} {_end(one, target, axis)}")
    _share_heights([*panels.flat][: len(series)])
    figure.supxlabel(axis.label, fontsize=8)
    figure.supylabel(target.metric.title, fontsize=8)


def _share_heights(panels: Sequence[Axes]) -> None:
    """Give all panels the y axis that one with the lines of all would have."""
    first = panels[0]
    first.update_datalim(
        [corner for axes in panels for corner in axes.dataLim.corners()]
    )
    first.autoscale_view(scalex=False)
    for axes in panels:
        axes.set_ylim(first.get_ylim())


def _style_panel(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=7, weight="normal", pad=3)
    axes.tick_params(labelsize=6.5, pad=2)
    axes.yaxis.get_offset_text().set_fontsize(6.5)


def _note_in_panel(axes: Axes, text: str) -> None:
    place: dict[str, Any] = {"transform": axes.transAxes, "ha": "right", "va": "bottom"}
    axes.text(0.98, 0.04, text, fontsize=6.5, **place)


def _draw_target(axes: Axes, target: Target, *, named: bool = True) -> None:
    line: dict[str, Any] = {"color": GREY, "linewidth": 0.8, "linestyle": (0, (2, 2))}
    axes.axhline(target.value, zorder=1, **line)
    if not named:
        return
    axes.annotate(
        f"target {target.metric.text(target.value, 1)}",
        (0, target.value),
        xycoords=("axes fraction", "data"),
        xytext=(3, 2),
        textcoords="offset points",
        fontsize=6.5,
        color="#666666",
    )


def _reach(series: Sequence[Series], cost: Cost) -> float:
    """Return where the x axis ends: with the last that is not the slow control.

    With the control's end if no other has a value after the start.
    """
    ends = list(_ends(series, cost))
    others = [end for algorithm, end in ends if algorithm != CONTROL]
    return max(others, default=0.0) or max(end for _, end in ends)


def _ends(series: Sequence[Series], cost: Cost) -> Iterator[tuple[str, float]]:
    for one in series:
        for curve in one.curves.values():
            yield one.algorithm, cost(curve.final)


def _is_beyond(one: Series, cost: Cost, reach: float) -> bool:
    return float(band(one.curves.values(), cost).x[-1]) > reach


def _end(one: Series, target: Target, axis: Axis) -> str:
    """Say where a line ends: its last mean value, and where on the axis."""
    line = band(one.curves.values(), axis.cost)
    value = target.metric.text(float(line.mean[-1]), 1)
    return f"{value} at {three_digits(float(line.x[-1]))} {axis.unit}"
