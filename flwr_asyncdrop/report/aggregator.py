"""The picture of what the aggregator says of its steps."""

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from flwr_asyncdrop.readable import Notation, printable_ends
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.style import BLUE, say_none
from flwr_asyncdrop.report.tasks import Floats
from flwr_asyncdrop.report.thinning import shown

_COLUMNS: Final = 2
_PANEL: Final = 1.7  # inches high
_LONGEST_NAME: Final = 40
_FEW: Final = 40  # points that are seen one by one


def draw_step_metrics(figure: Figure, log: RunLog) -> None:
    """Draw each number that the aggregator says of its steps over the run's time.

    Each has a panel, and an axis of its own: nobody knows what they mean. Steps of
    which it was NaN or infinity are left out.
    """
    curves = list(log.step_metrics.curves())
    rows = -(-len(curves) // _COLUMNS)
    figure.set_size_inches(figure.get_figwidth(), rows * _PANEL + 0.4)
    panels = figure.subplots(rows, min(len(curves), _COLUMNS), squeeze=False).flat
    for (name, times, values), axes in zip(curves, panels, strict=False):
        axes.set_title(_shown(name), weight="normal", size="medium", pad=4)
        axes.set_xlim(0, log.time or 1)
        _draw(axes, times, values)
    for axes in panels:  # what is left of them
        axes.set_visible(False)
    figure.supxlabel(log.time_label, fontsize="medium")
    figure.suptitle(_title(log), x=0.01, ha="left", weight="bold", size=10.5)


def in_words(log: RunLog) -> str:
    """Say what the numbers are, and which ones the last finite ones were."""
    last = [
        f"{_shown(name)} {Notation.of(values[-1:]).text(values[-1])}"
        for name, _, values in log.step_metrics.curves()
        if len(values)
    ]
    end = f" The last ones: {', '.join(last)}." if last else ""
    return f"What the aggregator says of each step.{end}"


def _shown(name: str) -> str:
    return printable_ends(name, _LONGEST_NAME)


def _draw(axes: Axes, times: Floats, values: Floats) -> None:
    if not len(times):
        say_none(axes, "Never a finite number")
        return
    few = shown(times, values)
    marker = "." if len(few) <= _FEW else ""
    axes.plot(
        times[few], values[few], color=BLUE, linewidth=1.0, marker=marker, clip_on=False
    )


def _title(log: RunLog) -> str:
    number = log.step_metrics.num_names
    left = number - len(list(log.step_metrics.curves()))
    notes = [f"1 step in {log.every:,}"] if log.every > 1 else []
    notes += [f"{number - left} of {number:,}"] if left else []
    return "Numbers of the aggregator" + (f" ({', '.join(notes)})" if notes else "")
