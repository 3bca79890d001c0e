"""A run in one picture."""

from collections.abc import Callable, Iterator
from pathlib import Path

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from flwr_asyncdrop.observers.history import read_history
from flwr_asyncdrop.report.levels import draw_levels, level_evaluations
from flwr_asyncdrop.report.panels import (
    draw_bytes,
    draw_metric,
    draw_staleness,
    draw_updates_by_rank,
)
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.style import GREY, STYLE
from flwr_asyncdrop.report.timeline import draw_timeline
from flwr_asyncdrop.report.units import draw_units

_WIDTH, _HEIGHT, _MORE_HEIGHT, _HEADER = 13.0, 8.6, 3.4, 0.86  # inches
_DPI = 140


def draw_run(history: Path, png: Path) -> Path:
    """Draw a run: metric, bytes, timeline of the fleet, its ranks, units and levels.

    Parameters
    ----------
    history : Path
        The ``history.jsonl`` of a run, ended or not.
    png : Path
        The picture; its folder is made, an old file is replaced. The same history
        gives the same bytes.

    Returns
    -------
    Path
        `png`.

    Raises
    ------
    DataError
        If the history cannot be read.
    """
    log = RunLog.from_records(read_history(history))
    return save(lambda: compose(log), png, dpi=_DPI)


def save(draw: Callable[[], Figure], png: Path, *, dpi: int) -> Path:
    """Draw a figure in our style and write it, the same bytes for the same figure."""
    png.parent.mkdir(parents=True, exist_ok=True)
    with style.context(["default", STYLE]):
        # Without the version of Matplotlib, and nothing in it tells the time.
        draw().savefig(png, dpi=dpi, format="png", metadata={"Software": None})
    return png


def compose(log: RunLog) -> Figure:
    """Lay out the header and the panels."""
    more = log.units is not None or bool(level_evaluations(log))
    height = _HEIGHT + _MORE_HEIGHT * more
    below_header = (0.008, 0.008, 0.984, 1 - _HEADER / height)
    layout = ConstrainedLayoutEngine(rect=below_header, h_pad=0.1, wspace=0.05)
    figure = Figure(figsize=(_WIDTH, height), layout=layout)
    ratios = (1, 1.1, 0.85) if more else (1, 1.1)
    grid = figure.add_gridspec(len(ratios), 1, height_ratios=ratios)
    top = grid[0].subgridspec(1, 2, width_ratios=(1.25, 1))
    bottom = grid[1].subgridspec(1, 3, width_ratios=(1.9, 0.8, 0.55))
    time_label = time_axis(log)
    draw_metric(figure.add_subplot(top[0]), log, time_label)
    draw_bytes(figure.add_subplot(top[1]), log, time_label)
    draw_timeline(figure.add_subplot(bottom[0]), log, time_label)
    draw_staleness(figure.add_subplot(bottom[1]), log)
    draw_updates_by_rank(figure.add_subplot(bottom[2]), log)
    if more:
        last = grid[2].subgridspec(1, 2, width_ratios=(1.6, 1))
        draw_units(figure.add_subplot(last[0]), log)
        draw_levels(figure.add_subplot(last[1]), log, time_label)
    title_at, facts_at = 1 - 0.24 / height, 1 - 0.53 / height
    figure.text(0.012, title_at, _title(log), fontsize=14, weight="bold", va="center")
    subtitle = " · ".join(_facts(log))
    figure.text(0.012, facts_at, subtitle, fontsize=10, color=GREY, va="center")
    return figure


def time_axis(log: RunLog) -> str:
    """Return the label of an axis that shows the time of a run."""
    return "virtual time (s)" if log.fact("clock") == "virtual" else "time (s)"


def _title(log: RunLog) -> str:
    """Return the algorithm, the data set and the model, as far as they are known."""
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
    yield f"{len(log.updates):,} updates"
    if log.failures:
        yield f"{len(log.failures):,} lost"
    if not log.complete:
        yield "cut off before its end"
