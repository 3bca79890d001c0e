"""What is drawn: a run in one picture, and the pictures of a report one by one."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from flwr_asyncdrop.readable import counted, readable_joules
from flwr_asyncdrop.report.aggregator import draw_step_metrics, in_words
from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.curves import draw_metric
from flwr_asyncdrop.report.lines import Axis, bytes_axis, draw_lines, time_axis
from flwr_asyncdrop.report.panels import draw_bytes, draw_levels
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.speeds import draw_speeds
from flwr_asyncdrop.report.style import GREY, drawable, save
from flwr_asyncdrop.report.target import Target
from flwr_asyncdrop.report.timeline import draw_timeline
from flwr_asyncdrop.report.units import draw_units
from flwr_asyncdrop.report.words import described

# Inches: a run's picture and its header; a page of a paper; the width of a comparison.
_SLIDE: Final = (12.8, 7.2)
_HEADER: Final = 1.15
_PAGE: Final = (7.0, 2.5)
_COMPARISON: Final = 6.8
_RUN_DPI, _DPI = 150, 220
_MARGIN: Final = 0.015  # of the width
_LONGEST_NAME: Final = 200  # bytes of the 255 of a file's name
_LARGE: Final = {
    "font_size": 15,
    "axes_titlesize": 17,
    "axes_titlepad": 10,
    "axes_linewidth": 1.2,
    "grid_linewidth": 1.2,
    "legend_fontsize": 15,
}


@dataclass(frozen=True)
class Picture:
    """A PNG, a sentence or two below it, and what it shows if that says less."""

    path: Path
    caption: str
    alt: str = ""


def draw_log(log: RunLog, png: Path) -> Path:
    """Draw a run in one picture, for a slide."""
    return save(lambda: compose(log), png, dpi=_RUN_DPI, **_LARGE)


def compose(log: RunLog) -> Figure:
    """Lay out the header and the three panels of a run."""
    height = _SLIDE[1]
    below_header = (0.01, 0.01, 0.98, 1 - _HEADER / height)
    layout = ConstrainedLayoutEngine(rect=below_header, hspace=0.06, wspace=0.05)
    figure = Figure(figsize=_SLIDE, layout=layout)
    columns = figure.add_gridspec(1, 2, width_ratios=(1.05, 1))
    right = columns[1].subgridspec(2, 1, height_ratios=(1.1, 1))
    draw_metric(figure.add_subplot(columns[0]), log)
    draw_speeds(figure.add_subplot(right[0]), log)
    draw_bytes(figure.add_subplot(right[1]), log)
    _write(figure, _title(log), 1 - 0.36 / height, 24, weight="bold")
    _write(figure, " · ".join(_facts(log)), 1 - 0.82 / height, 16, color=GREY)
    return figure


def _write(figure: Figure, text: str, y: float, size: float, **look: Any) -> None:
    """Write a line above the panels, in smaller type if it is too long."""
    line = figure.text(_MARGIN, y, drawable(text), fontsize=size, va="center", **look)
    share = line.get_window_extent().width / figure.bbox.width / (1 - 2 * _MARGIN)
    line.set_fontsize(size / max(1.0, share))


def _title(log: RunLog) -> str:
    title = str(log.fact("algorithm") or "A run")
    if dataset := log.fact("dataset"):
        title += f" on {dataset}"
    if model := log.fact("model"):
        title += f", {model}"
    return title


def _facts(log: RunLog) -> Iterator[str]:
    yield counted(log.devices, "device")
    if in_flight := log.fact("in_flight"):
        yield f"{in_flight:,} in flight"
    if drop_rate := log.fact("drop_rate"):
        is_text = isinstance(drop_rate, str)  # of an algorithm of one's own
        yield f"drop rate {drop_rate if is_text else format(drop_rate, 'g')}"
    yield f"seed {log.run['seed']}"
    yield counted(log.totals.updates, "update")
    if log.joules is not None:
        yield readable_joules(log.joules)
    if lost := sum(log.totals.failures.values()):
        yield f"{lost:,} lost"
    if not log.complete:
        yield "cut off before its end"


def draw_comparison(
    series: Sequence[Series], comparison: Comparison, out: Path
) -> list[Picture]:
    """Draw the metric against time and against bytes."""
    target = comparison.target
    log = next(log for one in series for log in one.runs.values())
    against = {
        "time": log.time_label.removesuffix(" (s)"),
        "bytes": "the bytes sent both ways",
    }
    pictures = []
    for cost, draw in comparison_figures(series, target, _COMPARISON).items():
        title = target.metric.heading
        caption = f"{title} against {against[cost]}: {over_seeds(series)}."
        name = f"{file_name(target.metric.name)}-{cost}.png"
        path = save(draw, out / name, dpi=_DPI)
        pictures.append(Picture(path, caption, described(comparison, cost)))
    return pictures


def comparison_figures(
    series: Sequence[Series], target: Target, width: float
) -> dict[str, Callable[[], Figure]]:
    """Return what draws the figures of a comparison, so many inches wide."""

    def drawing(axis: Axis) -> Callable[[], Figure]:
        def figure() -> Figure:
            made = Figure(layout="constrained")
            draw_lines(made, series, target, axis, width)
            return made

        return figure

    return {"time": drawing(time_axis(series)), "bytes": drawing(bytes_axis(series))}


def file_name(text: str) -> str:
    """Return what a file can be called after a label, or after a metric: a part of it.

    It has no slash, as a metric has that is called eval/accuracy, and is not too long.
    """
    return text.replace("/", "-").encode()[:_LONGEST_NAME].decode(errors="ignore")


def file_names(labels: Iterable[str]) -> dict[str, str]:
    """Return a name for the files of each label.

    No two are one to a disk that ignores case, and how a letter is composed, and none
    is longer than a disk allows.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    for label in labels:
        short = file_name(label)
        name, number = short, 1
        while (one := as_one(name)) in taken:
            number += 1
            name = f"{short}-{number}"
        taken.add(one)
        names[label] = name
    return names


def as_one(name: str) -> str:
    """Return what all names of a file are that a disk may take for one."""
    return unicodedata.normalize("NFC", name).casefold()


def over_seeds(series: Sequence[Series]) -> str:
    """Say what lines and shades are."""
    if max(len(one.curves) for one in series) > 1:
        return "mean of the seeds; shaded from the lowest to the highest seed"
    return "one seed"


def draw_fleet(log: RunLog, named: str, out: Path) -> list[Picture]:
    """Draw the timeline of a run, and whatever else its history has."""
    timeline = "Every task from dispatch to merge, coloured by its staleness."
    units = (
        "Share of each rank's updates that trained a unit. In each group, the units "
        "that the fastest ranks leave out most come first."
    )
    levels = "Accuracy of the global model on the labels that each level has."
    shown = (
        (True, "timeline", _alone(draw_timeline), timeline),
        (log.units is not None, "units", _alone(draw_units), units),
        (bool(log.level_evaluations), "levels", _alone(draw_levels), levels),
        (bool(log.step_metrics), "aggregator", draw_step_metrics, in_words(log)),
    )
    return [
        Picture(_draw(out / f"{name}-{named}.png", draw, log), caption)
        for there, name, draw, caption in shown
        if there
    ]


def _alone(panel: Callable[[Axes, RunLog], None]) -> Callable[[Figure, RunLog], None]:
    """Return what draws one panel in a figure of its own."""
    return lambda figure, log: panel(figure.add_subplot(), log)


def _draw(png: Path, draw: Callable[[Figure, RunLog], None], log: RunLog) -> Path:
    """Save a figure of a run, as wide as a page."""

    def figure() -> Figure:
        made = Figure(figsize=_PAGE, layout="constrained")
        draw(made, log)
        return made

    return save(figure, png, dpi=_DPI)
