"""The panels of a run's bytes, and of its speed levels."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from flwr_asyncdrop.readable import byte_unit, three_digits
from flwr_asyncdrop.report.labels import spread_out
from flwr_asyncdrop.report.runlog import LEVELS, RunLog, column
from flwr_asyncdrop.report.style import BLUE, INK, SKY, colour_bar, say_none
from flwr_asyncdrop.report.thinning import shown

_NOTABLE_SHARE = 0.005
_LABEL_GAP = 0.15  # of a panel's height


def draw_bytes(axes: Axes, log: RunLog) -> None:
    """Draw the bytes sent and received, and what full models would have cost.

    Of the merged updates, as those of full models are.
    """
    if log.share_saved is None:
        axes.set_title("Bytes sent and received")
        say_none(axes, "No update was merged")
        return
    axes.set_title(_compared(log.share_saved))
    # The last value is held a little: it is reached only at the very end.
    times = np.concatenate([[0.0], log.steps.time, [log.time * 1.015]])
    counts = np.cumsum(log.steps.updates, dtype=np.float64)
    sums = (*_cumulative(log), 2.0 * log.run["full_bytes"] * counts)
    down, up, full = (np.concatenate([[0.0], each, each[-1:]]) for each in sums)
    few = shown(times, down + up)
    times, down, up, full = times[few], down[few], up[few], full[few]
    unit, size = byte_unit(max(full[-1], down[-1] + up[-1]))
    areas = ((BLUE, np.zeros_like(down), down), (SKY, down, down + up))
    for color, low, high in areas:
        axes.fill_between(
            times, low / size, high / size, step="post", color=color, linewidth=0
        )
    axes.plot(
        times,
        full / size,
        drawstyle="steps-post",
        color=INK,
        linewidth=2.2,
        linestyle=(0, (4, 2)),
    )
    axes.set(xlabel=log.time_label, ylabel=f"cumulative {unit}")
    axes.margins(x=0.01)
    axes.set_ylim(bottom=0)
    ends = {
        ("full", full[-1]): full[-1],
        ("up", up[-1]): down[-1] + up[-1] / 2,
        ("down", down[-1]): down[-1] / 2,
    }
    labels = {
        f"{name}: {three_digits(each / size)} {unit}": end / size
        for (name, each), end in ends.items()
    }
    _label_ends(axes, labels)


def _label_ends(axes: Axes, ends: Mapping[str, float]) -> None:
    """Write labels at the right of a panel, as near to these heights as they can be."""
    top = axes.get_ylim()[1]
    heights = spread_out([end / top for end in ends.values()], _LABEL_GAP, 0.04, 0.98)
    for label, height in zip(ends, heights, strict=True):
        axes.text(1.02, height, label, transform=axes.transAxes, va="center")


def _compared(share_saved: float) -> str:
    """Say how the bytes compare with those of full models."""
    if share_saved > _NOTABLE_SHARE:
        return f"{share_saved:.0%} fewer bytes than full models"
    if share_saved < -_NOTABLE_SHARE:
        return f"{-share_saved:.0%} more bytes than full models"
    return "As many bytes as full models"


def _cumulative(log: RunLog) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bytes down and up after every step, each shape (steps,)."""
    down, up = log.steps.bytes_down, log.steps.bytes_up
    return np.cumsum(down, dtype=np.float64), np.cumsum(up, dtype=np.float64)


def draw_levels(axes: Axes, log: RunLog) -> None:
    """Draw the accuracy of the global model on the labels of each level, over time.

    Each evaluation is a column, which reaches half-way to its neighbours.
    """
    axes.set_title("Accuracy on the labels of each speed level")
    evaluations = log.level_evaluations
    if len(evaluations) < 2:
        say_none(axes, "Labels were not tied to speed levels")
        return
    times = column(evaluations, "time")
    edges = np.concatenate([times[:1], (times[1:] + times[:-1]) / 2, times[-1:]])
    shares = [line["metrics"][LEVELS] for line in evaluations]
    levels = np.array(shares, dtype=np.float64).T
    rows = np.arange(len(levels) + 1) - 0.5
    mesh = axes.pcolormesh(edges, rows, levels, cmap="cividis", vmin=0, vmax=1)
    axes.set_ylim(rows[-1], rows[0])
    axes.set_yticks(range(len(levels)))
    axes.set(xlabel=log.time_label, ylabel="speed level, 0 the fastest")
    axes.grid(visible=False)
    colour_bar(axes, mesh, "accuracy", shares=True)
