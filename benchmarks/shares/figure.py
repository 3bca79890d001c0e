"""Accuracy against seconds: real ones, and those that were predicted."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.style import BLUE, GREY, INK, ORANGE, STYLE

__all__ = ["draw"]

_COLOURS = {"hetero-asyncdrop": BLUE, "async-fedavg": ORANGE, "fedavg": GREY}
_LINES: Mapping[str, Any] = {"real": "-", "predicted": (0, (4, 2))}


def draw(logs: Mapping[str, Mapping[str, RunLog]], path: Path) -> Path:
    """Draw the curves of all runs.

    Parameters
    ----------
    logs : mapping of str to mapping of str to RunLog
        The runs by algorithm, for ``"real"`` and ``"predicted"``.
    path : Path
        Where the PNG goes.
    """
    with style.context(STYLE):
        figure = Figure(figsize=(7.2, 3.8), layout="constrained")
        axes = figure.add_subplot()
        for kind, runs in logs.items():
            for algorithm, log in runs.items():
                points = log.curve.points if log.curve else ()
                axes.plot(
                    [point.time for point in points],
                    [point.value for point in points],
                    color=_COLOURS[algorithm],
                    linestyle=_LINES[kind],
                    linewidth=1.8 if kind == "real" else 1.2,
                )
        axes.set_title("Five containers, CPU shares 1 : 5")
        axes.set(xlabel="seconds", ylabel="test accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        handles = [
            Line2D([], [], color=colour, label=name)
            for name, colour in _COLOURS.items()
        ]
        handles += [
            Line2D([], [], color=INK, linestyle=line, label=name)
            for name, line in _LINES.items()
        ]
        axes.legend(handles=handles, loc="lower right")
        figure.savefig(path, dpi=150)
    return path
