"""The panel that shows how the global model does for each speed level."""

import numpy as np
from matplotlib.axes import Axes

from flwr_asyncdrop.report.runlog import Record, RunLog, column
from flwr_asyncdrop.report.style import colour_bar, say_none

# What server/central_evaluation.py calls it in a history.
_METRIC = "level-accuracy"


def draw_levels(axes: Axes, log: RunLog, time_label: str) -> None:
    """Draw the accuracy of the global model on the labels of each level, over time.

    Each evaluation is a column, which reaches half-way to its neighbours.
    """
    axes.set_title("Accuracy on the labels of each speed level")
    evaluations = level_evaluations(log)
    if len(evaluations) < 2:
        say_none(axes, "Labels were not tied to speed levels")
        return
    times = column(evaluations, "time")
    edges = np.concatenate([times[:1], (times[1:] + times[:-1]) / 2, times[-1:]])
    levels = np.array([line["metrics"][_METRIC] for line in evaluations]).T
    rows = np.arange(len(levels) + 1) - 0.5
    mesh = axes.pcolormesh(edges, rows, levels, cmap="cividis", vmin=0, vmax=1)
    axes.set_ylim(rows[-1], rows[0])
    axes.set_yticks(range(len(levels)))
    axes.set(xlabel=time_label, ylabel="speed level, 0 the fastest")
    axes.grid(visible=False)
    colour_bar(axes, mesh, "accuracy", shares=True)


def level_evaluations(log: RunLog) -> list[Record]:
    """Return the evaluations that tell the levels apart."""
    return [line for line in log.evaluations if _METRIC in line["metrics"]]
