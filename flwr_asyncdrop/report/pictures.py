"""What is drawn: a run in one picture, and the pictures of a report one by one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from flwr_asyncdrop.readable import readable_joules
from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.curves import draw_metric
from flwr_asyncdrop.report.lines import Axis, bytes_axis, draw_lines, time_axis
from flwr_asyncdrop.report.panels import (
    draw_bytes,
    draw_levels,
    draw_staleness,
    draw_updates_by_rank,
)
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.style import GREY, save
from flwr_asyncdrop.report.target import Target
from flwr_asyncdrop.report.timeline import draw_timeline
from flwr_asyncdrop.report.units import draw_units
from flwr_asyncdrop.report.words import described

# Inches: a run's picture; a page of a paper; the width of a comparison.
_WIDTH, _HEIGHT, _MORE_HEIGHT, _HEADER = 13.0, 8.6, 3.4, 0.86
_PAGE: Final = (7.0, 2.5)
_COMPARISON: Final = 6.8
_RUN_DPI, _DPI = 140, 220


@dataclass(frozen=True)
class Picture:
    """A PNG, a sentence or two below it, and what it shows if that says less."""

    path: Path
    caption: str
    alt: str = ""


def draw_log(log: RunLog, png: Path) -> Path:
    """Draw a run in one picture."""
    return save(lambda: compose(log), png, dpi=_RUN_DPI)


def compose(log: RunLog) -> Figure:
    """Lay out the header and the panels of a run."""
    more = log.units is not None or bool(log.level_evaluations)
    height = _HEIGHT + _MORE_HEIGHT * more
    below_header = (0.008, 0.008, 0.984, 1 - _HEADER / height)
    layout = ConstrainedLayoutEngine(rect=below_header, h_pad=0.1, wspace=0.05)
    figure = Figure(figsize=(_WIDTH, height), layout=layout)
    ratios = (1, 1.1, 0.85) if more else (1, 1.1)
    grid = figure.add_gridspec(len(ratios), 1, height_ratios=ratios)
    rows = [
        {draw_metric: 1.25, draw_bytes: 1.0},
        {draw_timeline: 1.9, draw_staleness: 0.8, draw_updates_by_rank: 0.55},
        {draw_units: 1.6, draw_levels: 1.0},
    ]
    for number, row in enumerate(rows[: len(ratios)]):
        spaces = grid[number].subgridspec(1, len(row), width_ratios=tuple(row.values()))
        for place, draw in enumerate(row):
            draw(figure.add_subplot(spaces[place]), log)
    title_at, facts_at = 1 - 0.24 / height, 1 - 0.53 / height
    figure.text(0.012, title_at, _title(log), fontsize=14, weight="bold", va="center")
    subtitle = " · ".join(_facts(log))
    figure.text(0.012, facts_at, subtitle, fontsize=10, color=GREY, va="center")
    return figure


def _title(log: RunLog) -> str:
    title = str(log.fact("algorithm") or "A run")
    if dataset := log.fact("dataset"):
        title += f" on {dataset}"
    if model := log.fact("model"):
        title += f", {model}"
    return title


def _facts(log: RunLog) -> Iterator[str]:
    yield f"{log.devices:,} devices"
    if in_flight := log.fact("in_flight"):
        yield f"{in_flight:,} in flight"
    if drop_rate := log.fact("drop_rate"):
        yield f"drop rate {drop_rate:g}"
    yield f"seed {log.run['seed']}"
    yield f"{log.totals.updates:,} updates"
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
        title = target.metric.title.capitalize()
        caption = f"{title} against {against[cost]}: {over_seeds(series)}."
        path = save(draw, out / f"{target.metric.name}-{cost}.png", dpi=_DPI)
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


def over_seeds(series: Sequence[Series]) -> str:
    """Say what lines and shades are."""
    if max(len(one.curves) for one in series) > 1:
        return "mean of the seeds; shaded from the lowest to the highest seed"
    return "one seed"


def draw_fleet(log: RunLog, label: str, out: Path) -> list[Picture]:
    """Draw the timeline of a run, and the units and levels if its history has them."""
    timeline = "Every task from dispatch to merge, coloured by its staleness."
    units = (
        "Share of each rank's updates that trained a unit. In each group, the units "
        "that the fastest ranks leave out most come first."
    )
    levels = "Accuracy of the global model on the labels that each level has."
    shown = (
        (True, "timeline", draw_timeline, timeline),
        (log.units is not None, "units", draw_units, units),
        (bool(log.level_evaluations), "levels", draw_levels, levels),
    )
    return [
        Picture(_draw(out / f"{name}-{label}.png", draw, log), caption)
        for there, name, draw, caption in shown
        if there
    ]


def _draw(png: Path, panel: Callable[[Axes, RunLog], None], log: RunLog) -> Path:
    """Save one panel, as wide as a page."""

    def figure() -> Figure:
        made = Figure(figsize=_PAGE, layout="constrained")
        panel(made.add_subplot(), log)
        return made

    return save(figure, png, dpi=_DPI)
