"""Reports of long runs: few points are drawn, little is kept, and tables are exact."""

import json
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PathCollection, PolyCollection, QuadMesh
from matplotlib.figure import Figure

from benchmarks.reports import write_long_history
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report.curves import Band
from flwr_asyncdrop.report.pictures import compose
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.summary import Summary
from flwr_asyncdrop.report.thinning import shown
from flwr_asyncdrop.report.timeline import draw_timeline, stack
from tests.nightly import examples

UPDATES = 20_000


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    path = tmp_path_factory.mktemp("long") / "history.jsonl"
    write_long_history(path, UPDATES)
    return path


def drawn(axes):
    """Return how many corners and points a panel has."""
    shapes = [c for c in axes.collections if not isinstance(c, PathCollection)]
    polygons = [c for c in shapes if not isinstance(c, QuadMesh)]
    return (
        sum(len(line.get_xdata()) for line in axes.lines)
        + sum(len(path.vertices) for each in polygons for path in each.get_paths())
        + 4 * len(axes.patches)
    )


@pytest.fixture(scope="module")
def log(history):
    return RunLog.from_records(read_history(history))


def timeline_of(log):
    axes = Figure().add_subplot()
    draw_timeline(axes, log)
    return axes


def test_no_panel_draws_more_than_can_be_told_apart(log):
    assert max(map(drawn, compose(log).axes)) < 3 * 2 * 4 * 2 * 2000
    # One corner a task would be 20,000.
    assert drawn(timeline_of(log)) < 64 * 60 * 5


def test_a_long_run_of_many_evaluations_is_thinned():
    x = np.linspace(0.0, 1.0, 100_000)
    y = np.sin(40 * x)
    few = Band(x, y, y - 1, y + 1).thinned()
    assert 2000 <= len(few.x) <= 16_000
    assert few.high.max() == (y + 1).max()


def test_all_points_are_kept_that_there_is_room_for():
    x = np.arange(80.0)
    assert len(shown(x, x, x, x, buckets=10)) == 80
    assert len(shown(np.arange(81.0), *3 * [np.arange(81.0)], buckets=10)) < 80


def test_little_is_kept_of_every_update(history):
    tracemalloc.start()
    log = RunLog.from_records(read_history(history))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(log.updates) == UPDATES
    # As records they take 50 MB, and the text of the file 8 MB.
    assert kept < 4e6
    assert peak < 8e6


def naive(path):
    """Return the figures of a run from its records as they stand in the file."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    updates = [record for record in records if record["event"] == "update"]
    lost = [record for record in records if record["event"] == "failure"]
    down = sum(record["bytes_down"] for record in updates)
    up = sum(record["bytes_up"] for record in updates)
    staleness = [record["staleness"] for record in updates]
    full = 2 * records[0]["full_bytes"] * len(updates)
    return {
        "updates": len(updates),
        "rounds": max(record["round"] for record in updates),
        "time": max(record["time"] for record in records if "time" in record),
        "wall_seconds": max(record["wall"]["seconds"] for record in records),
        "bytes_down": down,
        "bytes_up": up,
        "bytes_full": full,
        "share_saved": 1 - (down + up) / full,
        "mean_staleness": sum(staleness) / len(staleness),
        "max_staleness": max(staleness),
        "updates_by_rank": dict(sorted(Counter(r["rank"] for r in updates).items())),
        "failures": dict(Counter(record["kind"] for record in lost)),
    }


@pytest.mark.parametrize("ended", [True, False])
def test_the_figures_are_those_of_the_records_to_the_digit(history, tmp_path, ended):
    path = tmp_path / "history.jsonl"
    lines = history.read_text().splitlines(keepends=True)
    path.write_text("".join(lines if ended else lines[: UPDATES // 2]))
    expected = naive(path)
    summary = Summary(RunLog.from_records(read_history(path)))
    assert {name: getattr(summary, name) for name in expected} == expected


curves = st.lists(
    st.tuples(st.integers(0, 50), st.integers(-5, 5)), min_size=1, max_size=200
)


@settings(max_examples=examples(200))
@given(curves, st.integers(1, 12))
def test_each_bucket_keeps_its_ends_and_its_extremes(points, buckets):
    points = sorted(points, key=lambda point: point[0])
    x, y = np.array(points, dtype=float).T
    few = shown(x, y, buckets=buckets)
    assert (np.diff(few) > 0).all()
    assert len(few) <= max(4 * buckets, 1)
    if len(x) <= 4 * buckets:
        assert len(few) == len(x)
        return
    width = (x[-1] - x[0]) / buckets
    for number in range(buckets):
        low = x[0] + number * width
        inside = (x >= low) & ((x < low + width) | (number == buckets - 1))
        if not inside.any() or np.isclose(x[inside], low + width).any():
            continue
        kept = inside[few]
        assert y[few][kept].min() == y[inside].min()
        assert y[few][kept].max() == y[inside].max()
        assert few[kept][0] == np.flatnonzero(inside)[0]
        assert few[kept][-1] == np.flatnonzero(inside)[-1]


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=40)


@given(intervals)
def test_rows_are_those_of_looking_at_every_row(intervals):
    spans = sorted((start, start + length) for start, length in intervals)
    free_from, expected = [], []
    for start, stop in spans:
        row = next((r for r, t in enumerate(free_from) if t <= start), len(free_from))
        free_from[row : row + 1] = [stop]
        expected.append(row)
    assert stack([a for a, _ in spans], [b for _, b in spans]) == expected


def test_neighbouring_ranks_share_a_lane_where_there_are_many(tmp_path):
    path = tmp_path / "history.jsonl"
    write_long_history(path, 3000, ranks=1000, evaluate_every=1000)
    timeline = timeline_of(RunLog.from_records(read_history(path)))
    assert timeline.get_ylim()[0] == pytest.approx(125 - 0.4)  # 8 ranks a lane
    labels = [label.get_text() for label in timeline.get_yticklabels()]
    assert labels[:2] == ["0", "88"]
    bars = [c for c in timeline.collections if isinstance(c, PolyCollection)]
    assert len(bars) == 2
