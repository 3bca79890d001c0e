"""The panel that shows which units each speed rank trains."""

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from flwr_asyncdrop.observers.history_lines import Record
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.style import GREY, colour_bar, say_none

_MOST_COLUMNS = 480
_LEAST_COLUMNS = 8
_MOST_NAMES = 12
_MOST_RANKS = 24
_GAP = 0.03


def draw_units(axes: Axes, log: RunLog) -> None:
    """Draw what share of each rank's updates trained each unit.

    A block of columns is a group of units. Within it the units that the fastest ranks
    leave out most stand first, so that a partition by speed shows as a diagonal and
    chance as noise. Of large groups neighbouring columns are pooled.
    """
    axes.set_title("Units that each rank trains")
    if log.units is None:
        say_none(axes, "Every device trained the full model")
        return
    shares = unit_shares(log.units)
    most = max(_LEAST_COLUMNS, _MOST_COLUMNS // len(shares))
    ranks = log.units["ranks"]
    rows = np.arange(len(ranks) + 1) - 0.5
    for place, block in enumerate(shares.values()):
        picture = pooled(block[:, by_who_leaves_out(block)], most)
        edges = np.linspace(place, place + 1 - _GAP, picture.shape[1] + 1)
        mesh = axes.pcolormesh(edges, rows, picture, cmap="cividis", vmin=0, vmax=1)
    axes.set_ylim(rows[-1], rows[0])
    step = -(-len(ranks) // _MOST_RANKS)
    axes.set_yticks(range(0, len(ranks), step), map(str, ranks[::step]))
    axes.set_ylabel("speed rank, 0 the fastest")
    _name_blocks(axes, [f"{g['name']} ({g['size']:,})" for g in log.units["groups"]])
    colour_bar(axes, mesh, "share of the rank's updates", shares=True)


def unit_shares(units: Record) -> dict[str, NDArray[np.float64]]:
    """Return by group the share of a rank's updates that trained a unit.

    Shape ``(ranks, units)``, or a column for each bin of units counted together.
    """
    updates = np.array(units["updates"], dtype=np.float64)
    shares = {}
    for group in units["groups"]:
        counts = np.array(group["counts"], dtype=np.float64)
        starts = np.arange(counts.shape[1]) * units["bin"]
        widths = np.minimum(group["size"] - starts, units["bin"])
        shares[group["name"]] = counts / (updates[:, None] * widths)
    return shares


def by_who_leaves_out(shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the order of the units by the mean rank of those who leave them out.

    A unit that everybody trains comes last.
    """
    absent = 1 - shares
    total = absent.sum(axis=0)
    places = np.arange(len(shares), dtype=np.float64)
    means = np.divide(
        places @ absent, total, out=np.full_like(total, np.inf), where=total > 0
    )
    return np.argsort(means, kind="stable")


def pooled(shares: NDArray[np.float64], most: int) -> NDArray[np.float64]:
    """Return `shares` with at most `most` columns, each the mean of neighbours."""
    if shares.shape[1] <= most:
        return shares
    parts = np.array_split(shares, most, axis=1)
    return np.stack([part.mean(axis=1) for part in parts], axis=1)


def _name_blocks(axes: Axes, names: list[str]) -> None:
    """Write the names of the blocks below them, or of some if there are many."""
    step = -(-len(names) // _MOST_NAMES)
    axes.set_xticks(np.arange(0, len(names), step) + 0.5, names[::step])
    if len(names) > 2:
        for label in axes.get_xticklabels():
            label.set(rotation=35, ha="right", rotation_mode="anchor", size="small")
    axes.tick_params(axis="x", length=0, labelcolor=GREY)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
