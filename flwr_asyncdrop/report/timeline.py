"""The panel of the figure that shows who trained when."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.speeds import first_of_group
from flwr_asyncdrop.report.style import GREY, RED, colour_bar, say_none
from flwr_asyncdrop.report.tasks import Floats, Ints

_MOST_DEVICE_LANES = 16
_MOST_LANES = 128
_MOST_TASKS_A_LANE = 40
_MOST_LABELS = 12
_LANE_HEIGHT = 0.78
_THIN_ROWS = 60  # from which on the edge of a bar would hide it


@dataclass(frozen=True)
class _Bars:
    """Tasks in the order of dispatch, and in which of the lanes each is.

    `names` are the names of the lanes, the fastest first; the columns have shape
    (tasks,). A task that was not `merged` was lost, and has no staleness.
    """

    names: Sequence[int]
    lane: Ints
    start: Floats
    stop: Floats
    merged: NDArray[np.bool_]
    staleness: Ints

    def only(self, those: NDArray[np.bool_]) -> Self:
        """Return some of the tasks, with all lanes."""
        columns = ("lane", "start", "stop", "merged", "staleness")
        return replace(self, **{name: getattr(self, name)[those] for name in columns})


def draw_timeline(axes: Axes, log: RunLog) -> None:
    """Draw every task as a bar from dispatch to merge, coloured by its staleness.

    A lane is a device; in a fleet of many devices a speed rank, or neighbouring ones if
    there are many; the fastest is on top. Of a long run only as much is shown as can be
    told apart.
    """
    bars = _bars(log)
    if not bars.names:
        axes.set_title("Timeline")
        say_none(axes, "No task came back")
        return
    start, stop = window(log.time, int(np.bincount(bars.lane).max()))
    whole = stop - start >= log.time
    part = "" if whole else f", {start:,.0f} to {stop:,.0f} of {log.time:,.0f} s"
    sampled = f" (1 in {log.every:,})" if log.every > 1 else ""
    axes.set_title(f"Timeline of the fleet{sampled}{part}")
    most = int(log.updates.staleness.max(initial=0))
    colours = ScalarMappable(Normalize(0, max(1, most)), colormaps["viridis_r"])
    inside = (bars.stop >= start) & (bars.start <= stop)
    _draw_bars(axes, bars.only(inside), colours)
    axes.set(
        xlim=(start, stop),
        ylim=(len(bars.names) - 0.4, -0.6),
        xlabel=log.time_label,
        ylabel="speed rank, 0 the fastest"
        if _by_rank(log)
        else "device, fastest on top",
    )
    few = len(bars.names) <= _MOST_DEVICE_LANES
    step = 1 if few else -(-len(bars.names) // _MOST_LABELS)
    places = range(0, len(bars.names), step)
    axes.set_yticks(places, [str(bars.names[place]) for place in places])
    axes.grid(visible=False, axis="y")
    if len(log.failures):
        lost = Line2D([], [], color=RED, marker="X", linestyle="", label="task lost")
        axes.legend(
            handles=[lost],
            loc="lower right",
            bbox_to_anchor=(1.0, 1.0),
            borderaxespad=0.2,
        )
    colour_bar(axes, colours, "staleness (versions)")


def stack(starts: Sequence[float], stops: Sequence[float]) -> list[int]:
    """Return for each interval the first row in which it overlaps no earlier one.

    The intervals come by ascending start.
    """
    busy: list[tuple[float, int]] = []  # until when, and the row
    free: list[int] = []
    rows = []
    for start, stop in zip(starts, stops, strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        row = heapq.heappop(free) if free else len(busy)
        heapq.heappush(busy, (stop, row))
        rows.append(row)
    return rows


def window(time: float, most_tasks: int) -> tuple[float, float]:
    """Return the middle part of a run in which single tasks can be told apart.

    The run took `time` seconds; no lane has more than `most_tasks` tasks.
    """
    share = min(1.0, _MOST_TASKS_A_LANE / max(1, most_tasks))
    return time * (1 - share) / 2, time * (1 + share) / 2


def _by_rank(log: RunLog) -> bool:
    return len(log.active_devices) > _MOST_DEVICE_LANES


def _bars(log: RunLog) -> _Bars:
    """Return the tasks in the order of dispatch, and the lanes from the fastest on."""
    merged, lost = log.updates, log.failures
    starts = np.concatenate([merged.dispatched_at, lost.dispatched_at])
    order = np.argsort(starts, kind="stable")
    ranks = np.concatenate([merged.rank, lost.rank])[order]
    devices = np.concatenate([merged.device, lost.device])[order]
    keys = first_of_group(ranks, _MOST_LANES) if _by_rank(log) else devices
    names, lanes = np.unique(keys, return_inverse=True)
    mean_ranks = np.bincount(lanes, ranks) / np.bincount(lanes)
    fastest_first = np.lexsort((names, mean_ranks))
    places = np.argsort(fastest_first)
    none = np.zeros(len(lost), dtype=np.int64)
    return _Bars(
        names=names[fastest_first].tolist(),
        lane=places[lanes],
        start=starts[order],
        stop=np.concatenate([merged.time, lost.time])[order],
        merged=order < len(merged),
        staleness=np.concatenate([merged.staleness, none])[order],
    )


def _rows(bars: _Bars) -> tuple[Ints, Ints]:
    """Return the row of each bar in its lane, and how many rows that lane has."""
    rows = np.zeros(len(bars.lane), dtype=np.int64)
    for those in _by_lane(bars.lane):
        rows[those] = stack(bars.start[those].tolist(), bars.stop[those].tolist())
    of_lane = np.zeros(len(bars.names), dtype=np.int64)
    np.maximum.at(of_lane, bars.lane, rows + 1)
    return rows, of_lane


def _by_lane(lanes: Ints) -> list[Ints]:
    """Return the places of each lane's tasks in their order."""
    order = np.argsort(lanes, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(lanes[order])) + 1)


def _draw_bars(axes: Axes, bars: _Bars, colours: ScalarMappable) -> None:
    """Draw bars; those of a lane that overlap are in rows above each other."""
    rows, of_lane = _rows(bars)
    heights = _LANE_HEIGHT / of_lane[bars.lane]
    low = bars.lane - _LANE_HEIGHT / 2 + rows * heights
    left, right, high = bars.start, bars.stop, low + heights
    corners = np.stack([left, low, right, low, right, high, left, high], axis=1)
    merged, lost = bars.merged, ~bars.merged
    fills = {"facecolor": colours.to_rgba(bars.staleness[merged]), "edgecolor": "white"}
    hatches = {"facecolor": "none", "edgecolor": GREY, "hatch": "////"}
    thin = of_lane.sum() > _THIN_ROWS
    for those, look in ((merged, fills), (lost, hatches)):
        shapes = list(corners[those].reshape(-1, 4, 2))
        width = 0.0 if thin and look is fills else 0.6
        axes.add_collection(PolyCollection(shapes, linewidth=width, **look))
    size = 3.5 if thin else 6
    middles = (low + heights / 2)[lost]
    axes.plot(right[lost], middles, "X", color=RED, markersize=size, zorder=3)
