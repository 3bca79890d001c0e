"""The panels that plot counts of a run: bytes, staleness, updates, and levels."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator
from numpy.typing import NDArray

from flwr_asyncdrop.readable import byte_unit, readable_bytes
from flwr_asyncdrop.report.runlog import LEVELS, RunLog, column
from flwr_asyncdrop.report.style import BLUE, GREY, INK, SKY, colour_bar, say_none
from flwr_asyncdrop.report.tasks import Ints
from flwr_asyncdrop.report.thinning import shown

_MOST_LABELLED_RANKS = 24
_NOTABLE_SHARE = 0.005


def add_bytes_axis(axes: Axes, log: RunLog) -> None:
    """Mark on the upper edge what the merged updates have sent and received."""
    if len(log.updates):
        down, up = _cumulative(log)
        unit, size = byte_unit(down[-1] + up[-1])
        _add_top_axis(axes, log, (down + up) / size, f"sent and received ({unit})")


def draw_bytes(axes: Axes, log: RunLog) -> None:
    """Draw the bytes sent and received, and what full models would have cost."""
    if not _has_updates(axes, log, "Bytes of the merged updates"):
        return
    # The last value is held a little: it is reached only at the very end.
    times = np.concatenate([[0.0], log.steps.time, [log.time * 1.015]])
    counts = np.cumsum(log.steps.updates, dtype=np.float64)
    sums = (*_cumulative(log), 2.0 * log.run["full_bytes"] * counts)
    down, up, full = (np.concatenate([[0.0], each, each[-1:]]) for each in sums)
    few = shown(times, down + up)
    times, down, up, full = times[few], down[few], up[few], full[few]
    unit, size = byte_unit(max(full[-1], down[-1] + up[-1]))
    areas = ((BLUE, "down", np.zeros_like(down), down), (SKY, "up", down, down + up))
    for color, word, low, high in areas:
        axes.fill_between(
            times,
            low / size,
            high / size,
            step="post",
            color=color,
            linewidth=0,
            label=f"{word}: {readable_bytes(high[-1] - low[-1])}",
        )
    axes.plot(
        times,
        full / size,
        drawstyle="steps-post",
        color=INK,
        linewidth=1.3,
        linestyle=(0, (4, 2)),
        label=f"full models: {readable_bytes(full[-1])}",
    )
    axes.set(xlabel=log.time_label, ylabel=f"cumulative {unit}")
    axes.margins(x=0.01)
    axes.set_ylim(bottom=0)
    share = log.share_saved or 0.0
    saved = f", {share:.0%} saved" if share > _NOTABLE_SHARE else ""
    axes.legend(
        loc="upper left",
        reverse=True,
        title=f"this run: {readable_bytes(down[-1] + up[-1])}{saved}",
        alignment="left",
    )
    _add_top_axis(axes, log, counts, "updates")


def _has_updates(axes: Axes, log: RunLog, title: str) -> bool:
    """Set a panel's title; say so in the panel if there is nothing to draw."""
    axes.set_title(title)
    if not len(log.updates):
        say_none(axes, "No update was merged")
    return len(log.updates) > 0


def _cumulative(log: RunLog) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the bytes down and up after every step, each shape (steps,)."""
    down, up = log.steps.bytes_down, log.steps.bytes_up
    return np.cumsum(down, dtype=np.float64), np.cumsum(up, dtype=np.float64)


def _add_top_axis(
    axes: Axes, log: RunLog, counts: NDArray[np.float64], label: str
) -> None:
    """Mark on the upper edge when a count of each update passes round numbers."""
    locator = MaxNLocator(7, steps=[1, 2, 5, 10])
    ticks = np.array(locator.tick_values(0, counts[-1]))
    ticks = ticks[(ticks >= 0) & (ticks <= counts[-1])]
    counts, times = np.append(0.0, counts), np.append(0.0, log.steps.time)
    top = axes.secondary_xaxis("top")
    top.set_xticks(np.interp(ticks, counts, times), [f"{tick:,g}" for tick in ticks])
    top.set_xlabel(label, color=GREY, fontsize=8.5)
    top.tick_params(labelcolor=GREY, labelsize=8.5, color=GREY)
    top.spines["top"].set_visible(False)


def sampled(log: RunLog) -> str:
    """Return what to add to the title of a panel that shows the kept tasks only."""
    return f" (1 in {log.every:,})" if log.every > 1 else ""


def draw_staleness(axes: Axes, log: RunLog) -> None:
    """Draw the distribution of the staleness in every rank."""
    if not _has_updates(axes, log, f"Staleness by rank{sampled(log)}"):
        return
    staleness = log.updates.staleness
    by_rank = np.argsort(log.updates.rank, kind="stable")
    lanes, first = np.unique(log.updates.rank[by_rank], return_index=True)
    groups = np.split(staleness[by_rank], first[1:])
    low, first, third, high = np.transpose(
        [np.quantile(group, (0.0, 0.25, 0.75, 1.0)) for group in groups]
    )
    axes.hlines(lanes, low, high, color=GREY, linewidth=1, label="range")
    axes.hlines(lanes, first, third, color=SKY, linewidth=7, label="middle half")
    means = [group.mean() for group in groups]
    axes.plot(means, lanes, "o", color=BLUE, markersize=4.5, label="mean")
    axes.set(xlabel="staleness (versions)", ylabel="speed rank")
    axes.set_xlim(left=0, right=max(1.0, float(staleness.max())) * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    _set_rank_lanes(axes, lanes)
    axes.legend(loc="upper right")


def draw_updates_by_rank(axes: Axes, log: RunLog) -> None:
    """Draw how many updates came from every rank."""
    if not _has_updates(axes, log, "Updates by rank"):
        return
    pairs = sorted(log.totals.ranks.items())
    lanes, counts = np.array(pairs, dtype=np.int64).T
    bars = axes.barh(lanes, counts, height=0.62, color=BLUE)
    if len(lanes) <= _MOST_LABELLED_RANKS:
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8.5)
    axes.set_xlabel("updates")
    axes.margins(x=0.22)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.grid(visible=False, axis="y")
    _set_rank_lanes(axes, lanes)


def _set_rank_lanes(axes: Axes, lanes: Ints) -> None:
    axes.set_ylim(lanes.max() + 0.6, lanes.min() - 0.6)
    if len(lanes) <= _MOST_LABELLED_RANKS:
        axes.yaxis.set_major_locator(FixedLocator(lanes.tolist()))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(12, integer=True))


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
