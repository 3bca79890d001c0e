"""The panel of the figure that shows who trained when."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.lines import Line2D

from flwr_asyncdrop.report.runlog import Record, RunLog, column
from flwr_asyncdrop.report.style import GREY, RED, colour_bar, say_none

_MOST_DEVICE_LANES = 16
_MOST_TASKS_A_LANE = 40
_LANE_HEIGHT = 0.78


def draw_timeline(axes: Axes, log: RunLog) -> None:
    """Draw every task as a bar from dispatch to merge, coloured by its staleness.

    A lane is a device, or a speed rank in a fleet of many devices; the fastest is on
    top. Of a long run only as much is shown as can be told apart.
    """
    lanes = _lanes(log)
    if not lanes:
        axes.set_title("Timeline")
        say_none(axes, "No task came back")
        return
    start, stop = window(log.time, max(map(len, lanes.values())))
    whole = stop - start >= log.time
    part = "" if whole else f", {start:,.0f} to {stop:,.0f} of {log.time:,.0f} s"
    axes.set_title(f"Timeline of the fleet{part}")
    most = max((line["staleness"] for line in log.updates), default=0)
    colours = ScalarMappable(Normalize(0, max(1, most)), colormaps["viridis_r"])
    for place, tasks in enumerate(lanes.values()):
        _draw_lane(axes, place, tasks, colours)
    by_rank = _by_rank(log)
    axes.set(
        xlim=(start, stop),
        ylim=(len(lanes) - 0.4, -0.6),
        xlabel=log.time_label,
        ylabel="speed rank, 0 the fastest" if by_rank else "device, fastest on top",
    )
    step = max(1, len(lanes) // 24)
    axes.set_yticks(range(0, len(lanes), step), list(map(str, lanes))[::step])
    axes.grid(visible=False, axis="y")
    if log.failures:
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
    free_from: list[float] = []
    rows = []
    for start, stop in zip(starts, stops, strict=True):
        row = next((r for r, t in enumerate(free_from) if t <= start), len(free_from))
        free_from[row : row + 1] = [stop]
        rows.append(row)
    return rows


def window(time: float, most_tasks: int) -> tuple[float, float]:
    """Return the middle part of a run in which single tasks can be told apart.

    The run took `time` seconds; no lane has more than `most_tasks` tasks.
    """
    share = min(1.0, _MOST_TASKS_A_LANE / max(1, most_tasks))
    return time * (1 - share) / 2, time * (1 + share) / 2


def _by_rank(log: RunLog) -> bool:
    devices = {line["device"] for line in (*log.updates, *log.failures)}
    return len(devices) > _MOST_DEVICE_LANES


def _lanes(log: RunLog) -> Mapping[int, Sequence[Record]]:
    """Return the tasks by lane, the fastest lane first, in the order of dispatch."""
    tasks = sorted((*log.updates, *log.failures), key=lambda t: t["dispatched_at"])
    key = "rank" if _by_rank(log) else "device"
    lanes: defaultdict[int, list[Record]] = defaultdict(list)
    for task in tasks:
        lanes[task[key]].append(task)
    order = sorted(lanes, key=lambda k: (np.mean(column(lanes[k], "rank")), k))
    return {k: lanes[k] for k in order}


def _draw_lane(
    axes: Axes, place: int, tasks: Sequence[Record], colours: ScalarMappable
) -> None:
    starts, stops = column(tasks, "dispatched_at"), column(tasks, "time")
    rows = np.array(stack(starts.tolist(), stops.tolist()))
    height = _LANE_HEIGHT / (rows.max() + 1)
    middles = place - _LANE_HEIGHT / 2 + (rows + 0.5) * height
    merged = np.array([task["event"] == "update" for task in tasks])
    staleness = np.array([task.get("staleness", 0) for task in tasks])
    fills = {"color": colours.to_rgba(staleness[merged]), "edgecolor": "white"}
    hatches = {"facecolor": "none", "edgecolor": GREY, "hatch": "////"}
    for those, look in ((merged, fills), (~merged, hatches)):
        axes.barh(
            middles[those],
            (stops - starts)[those],
            left=starts[those],
            height=height,
            linewidth=0.6,
            **look,
        )
    axes.plot(stops[~merged], middles[~merged], "X", color=RED, markersize=6, zorder=3)
