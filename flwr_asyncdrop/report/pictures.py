"""The pictures of a report, each a file of the size that a paper prints it in."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flwr_asyncdrop.report.curves import draw_against_bytes, draw_against_time
from flwr_asyncdrop.report.figure import save, time_axis
from flwr_asyncdrop.report.levels import draw_levels, level_evaluations
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.timeline import draw_timeline
from flwr_asyncdrop.report.units import draw_units

_COLUMN: Final = (3.4, 3.2)
_PAGE: Final = (7.0, 2.5)
_DPI: Final = 220
_LEGEND_LINE: Final = 0.17
_LONGEST_OF_TWO: Final = 20  # characters


@dataclass(frozen=True)
class Picture:
    """A picture and what it shows.

    Attributes
    ----------
    path : Path
        The PNG.
    caption : str
        A sentence or two below it.
    """

    path: Path
    caption: str


def draw_comparison(
    series: Sequence[Series], target: float, out: Path
) -> tuple[Picture, Picture]:
    """Draw accuracy against time and against bytes, each as wide as a column."""
    logs = [log for one in series for log in one.runs.values()]
    label = time_axis(logs[0])
    most = max(len(one.curves) for one in series)
    lines = "mean of the seeds" if most > 1 else "one seed"
    shade = "; shaded from the lowest to the highest seed" if most > 1 else ""
    width, height = _COLUMN
    columns = legend_columns([one.label for one in series])
    lines_of_legend = -(-len(series) // columns)
    size = (width, height + _LEGEND_LINE * max(0, lines_of_legend - 4))

    def against_time(axes: Axes) -> None:
        draw_against_time(axes, series, target, label)

    def against_bytes(axes: Axes) -> None:
        draw_against_bytes(axes, series, target)

    return (
        Picture(
            _draw(against_time, out / "accuracy-time.png", size, columns),
            f"Accuracy against {label.removesuffix(' (s)')}: {lines}{shade}.",
        ),
        Picture(
            _draw(against_bytes, out / "accuracy-bytes.png", size, columns),
            f"Accuracy against the bytes sent both ways: {lines}{shade}.",
        ),
    )


def legend_columns(labels: Sequence[str]) -> int:
    """Return how many columns of a legend fit below a figure as wide as a column."""
    return 2 if max(map(len, labels)) <= _LONGEST_OF_TWO else 1


def draw_fleet(log: RunLog, label: str, out: Path) -> list[Picture]:
    """Draw what the fleet did in one run, each picture as wide as a page.

    The timeline, and where the history tells, the units that each rank trained and
    the accuracy of each level.
    """
    time_label = time_axis(log)
    pictures = [
        Picture(
            _draw(
                lambda axes: draw_timeline(axes, log, time_label),
                out / f"timeline-{label}.png",
                _PAGE,
            ),
            "Every task from dispatch to merge; the darker, the staler.",
        )
    ]
    if log.units is not None:
        path = out / f"units-{label}.png"
        caption = (
            "Share of each rank's updates that trained a unit. In each group, the "
            "units that the fastest ranks leave out most come first."
        )
        drawn = _draw(lambda axes: draw_units(axes, log), path, _PAGE)
        pictures.append(Picture(drawn, caption))
    if level_evaluations(log):
        path = out / f"levels-{label}.png"
        caption = "Accuracy of the global model on the labels that each level has."
        drawn = _draw(lambda axes: draw_levels(axes, log, time_label), path, _PAGE)
        pictures.append(Picture(drawn, caption))
    return pictures


def _draw(
    panel: Callable[[Axes], None],
    png: Path,
    size: tuple[float, float],
    columns: int = 0,
) -> Path:
    def figure() -> Figure:
        made = Figure(figsize=size, layout="constrained")
        panel(made.add_subplot())
        if columns:
            made.legend(loc="outside lower center", ncols=columns)
        return made

    return save(figure, png, dpi=_DPI)
