"""The panel that shows what devices of each speed contribute."""

import numpy as np
from matplotlib.axes import Axes

from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.style import BLUE, say_none
from flwr_asyncdrop.report.tasks import Ints

_MOST_BARS = 8
_ROOM = 0.8  # right of the longest bar for its label, as a share of the bar


def draw_speeds(axes: Axes, log: RunLog) -> None:
    """Draw how many updates came from each speed, and say how stale they were.

    A bar is a speed rank, or neighbouring ones if there are many; the fastest is on
    top. Updates are all that were merged, and staleness is the mean of those that the
    history keeps: the label says how many they are, if not all.
    """
    axes.set_title("Updates by speed rank")
    if not log.totals.updates:
        say_none(axes, "No update was merged")
        return
    counts = _counts(log)
    ranks = np.arange(len(counts))
    bars, bar_of = np.unique(first_of_group(ranks, _MOST_BARS), return_inverse=True)
    updates = np.add.reduceat(counts, bars)
    drawn = axes.barh(range(len(bars)), updates, height=0.7, color=BLUE)
    axes.bar_label(drawn, _labels(log, updates, bar_of), padding=6)
    last = np.append(bars[1:], len(ranks)) - 1
    axes.set_yticks(range(len(bars)), map(_name, bars, last))
    axes.set(ylabel="0 the fastest", xlim=(0, (1 + _ROOM) * updates.max()))
    axes.set(ylim=(len(bars) - 0.5, -0.5), xticks=[])
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)


def first_of_group(ranks: Ints, most: int) -> Ints:
    """Return for each rank the first of the neighbouring ones in its group.

    All groups but the last are of the same size, the least that makes `most` or fewer.
    """
    size = -(-(int(ranks.max(initial=0)) + 1) // most)
    return ranks // size * size


def _counts(log: RunLog) -> Ints:
    """Return the updates of every rank that had a task, shape (ranks,)."""
    slowest = max(*log.totals.ranks, int(log.failures.rank.max(initial=0)))
    counts = np.zeros(slowest + 1, dtype=np.int64)
    for rank, updates in log.totals.ranks.items():
        counts[rank] = updates
    return counts


def _labels(log: RunLog, updates: Ints, bar_of: Ints) -> list[str]:
    kept_in = bar_of[log.updates.rank]
    kept = np.bincount(kept_in, minlength=len(updates))
    sums = np.bincount(kept_in, log.updates.staleness, minlength=len(updates))
    return list(map(_label, updates, sums, kept))


def _label(updates: int, staleness: float, kept: int) -> str:
    """Say how many updates there are, and how stale, in the mean, those kept are."""
    if not kept:
        return f"{updates:,}"
    of_which = f" (of {kept:,})" if kept < updates else ""
    return f"{updates:,} · staleness {staleness / kept:.1f}{of_which}"


def _name(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"
