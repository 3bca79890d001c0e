import json
import struct
import sys
from math import nan

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import colormaps
from matplotlib.figure import Figure

from flwr_asyncdrop.exceptions import DataError, MissingExtraError
from flwr_asyncdrop.report import draw_run
from flwr_asyncdrop.report.curves import draw_metric
from flwr_asyncdrop.report.panels import draw_bytes
from flwr_asyncdrop.report.pictures import compose
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.report.timeline import draw_timeline, stack, window

DURATIONS = (1.0, 2.5, 4.0)
RUN = {
    "event": "run",
    "schema": 2,
    "seed": 0,
    "full_bytes": 1_000_000,
    "algorithm": "asyncdrop",
    "dataset": "digits",
    "wall": {"seconds": 0.0},
}


def tasks(count, devices):
    """Return update records of devices that train one after the other."""
    records = [
        {
            "event": "update",
            "device": device,
            "rank": device * len(DURATIONS) // devices,
            "dispatched_at": turn * DURATIONS[device * len(DURATIONS) // devices],
            "staleness": device % 5,
            "bytes_down": 600_000,
            "bytes_up": 600_000,
            "wall": {"seconds": 0.0},
        }
        for turn, device in (divmod(number, devices) for number in range(count))
    ]
    for record in records:
        record["time"] = record["dispatched_at"] + DURATIONS[record["rank"]]
    records.sort(key=lambda record: record["time"])
    return [
        {**record, "update": number, "round": 1}
        for number, record in enumerate(records, start=1)
    ]


def lost(record):
    kept = ("device", "rank", "dispatched_at", "time", "wall")
    return {
        **{key: record[key] for key in kept},
        "event": "failure",
        "kind": "no-reply",
        "reason": "no reply within 60 s",
    }


def evaluations(values, name="accuracy"):
    return [
        {
            "event": "evaluation",
            "source": "server",
            "round": number,
            "update": number,
            "time": float(number),
            "bytes_down": 600_000 * number,
            "bytes_up": 600_000 * number,
            "metrics": {name: value},
            "wall": {"seconds": 0.0},
        }
        for number, value in enumerate(values)
    ]


RUNS = {
    "few devices": [RUN, *tasks(6, 2), *evaluations([0.1, 0.5, 0.4])],
    "many devices": [RUN, *tasks(200, 40), *evaluations([0.1] * 80)],
    "no evaluation": [RUN, *tasks(20, 4)],
    "no update": [RUN, *evaluations([0.1])],
    "only failures": [RUN, *map(lost, tasks(8, 4))],
    "failures": [RUN, *tasks(20, 4), *map(lost, tasks(8, 4))],
    "loss": [RUN, *tasks(20, 4), *evaluations([2.0, 1.0], name="loss")],
    "nothing": [RUN],
}


def write(path, records):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return path


@pytest.mark.parametrize("records", RUNS.values(), ids=RUNS.keys())
def test_every_run_gives_a_png_that_fills_a_slide(tmp_path, records):
    history = write(tmp_path / "history.jsonl", records)
    png = draw_run(history, tmp_path / "new" / "run.png")
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", data[16:24]) == (1920, 1080)
    assert len(data) > 10_000


def test_same_history_gives_the_same_bytes_and_another_one_others(tmp_path):
    one = write(tmp_path / "one.jsonl", RUNS["failures"])
    other = write(tmp_path / "other.jsonl", RUNS["no evaluation"])
    drawings = [
        draw_run(history, tmp_path / f"{number}.png").read_bytes()
        for number, history in enumerate([one, one, other])
    ]
    assert drawings[0] == drawings[1] != drawings[2]
    assert b"Software" not in drawings[0]


def test_settings_of_matplotlib_neither_change_nor_matter(tmp_path):
    history = write(tmp_path / "history.jsonl", RUNS["few devices"])
    plain = draw_run(history, tmp_path / "plain.png").read_bytes()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        before = dict(mpl.rcParams)
        odd = draw_run(history, tmp_path / "odd.png").read_bytes()
        assert dict(mpl.rcParams) == before
    assert odd == plain


def test_a_backend_that_matplotlib_does_not_know_is_one_line(tmp_path, monkeypatch):
    history = write(tmp_path / "history.jsonl", RUNS["few devices"])
    (tmp_path / "matplotlib.py").write_text("raise ValueError('Key backend: no')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "matplotlib")
    says = r"^matplotlib cannot be imported \(ValueError: Key backend: no\): unset MPLB"
    with pytest.raises(MissingExtraError, match=says):  # which ends no run
        draw_run(history, tmp_path / "run.png")


def header(records):
    """Return the two lines above the panels."""
    figure = compose(RunLog.from_records(records))
    return [text.get_text() for text in figure.texts]


def test_header_says_what_was_run():
    config = {"model": "mlp", "in-flight": 8, "drop-rate": 0.25}
    run = {**RUN, "devices": 104, "config": config}
    lines = tasks(3, 2)
    assert header([run, *lines, lost(lines[0])]) == [
        "asyncdrop on digits, mlp",
        "104 devices · 8 in flight · drop rate 0.25 · seed 0 · 3 updates · "
        "1 lost · cut off before its end",
    ]


def test_the_drop_rate_of_an_algorithm_of_ones_own_may_be_a_text():
    run = {**RUN, "config": {"drop-rate": "0.5 of conv1"}}
    assert " · drop rate 0.5 of conv1 · " in header([{**run, "devices": 9}])[1]


def test_a_long_header_is_written_smaller():
    long = {**RUN, "algorithm": "package.module:" + "Algorithm" * 12}
    sizes = []
    for run in (RUN, long):
        figure = compose(RunLog.from_records([run]))
        title = figure.texts[0]
        assert title.get_window_extent().x1 < figure.bbox.x1
        sizes.append(title.get_fontsize())
    assert sizes[1] < sizes[0] == 24


def test_a_run_has_three_panels():
    group = {"name": "hidden", "size": 2, "counts": [[1, 0]]}
    counts = {"ranks": [0], "updates": [1], "bin": 1, "groups": [group]}
    units = {"event": "units", **counts, "wall": {"seconds": 0.0}}
    figure = compose(RunLog.from_records([*RUNS["few devices"], units]))
    panels = [axes.get_title() for axes in figure.axes]
    assert list(filter(None, panels)) == [
        "Accuracy, evaluated on the server",
        "Updates by speed rank",
        "40% fewer bytes than full models",
    ]


def test_missing_history_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the history .*gone\.jsonl"):
        draw_run(tmp_path / "gone.jsonl", tmp_path / "run.png")


def draw(panel, records):
    axes = Figure().add_subplot()
    panel(axes, RunLog.from_records(records))
    return axes


def test_metric_panel_names_the_best_and_the_final_value():
    axes = draw(draw_metric, RUNS["few devices"])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["best 50.00%", "final 40.00%"]


def test_metric_panel_says_once_that_the_final_value_is_the_best():
    axes = draw(draw_metric, RUNS["loss"])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["best and final 1"]


def test_metric_panel_has_no_final_value_of_a_run_that_diverged():
    records = [RUN, *tasks(6, 2), *evaluations([0.1, 0.5, 0.4, nan])]
    texts = draw(draw_metric, records).get_legend().get_texts()
    assert [text.get_text() for text in texts] == [
        "best 50.00%",
        "diverged after 40.00%",
    ]


@pytest.mark.parametrize(
    ("up", "title", "labels"),
    [
        (600_000, "40% fewer bytes than full models", "up: 3.60 MB"),
        (1_400_000, "As many bytes as full models", "up: 8.40 MB"),
        (1_900_000, "25% more bytes than full models", "up: 11.4 MB"),
    ],
)
def test_bytes_panel_compares_with_full_models(up, title, labels):
    axes = draw(draw_bytes, [RUN, *({**t, "bytes_up": up} for t in tasks(6, 2))])
    assert axes.get_title() == title
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["full: 12.0 MB", labels, "down: 3.60 MB"]
    # The area of what was sent up lies on that of what was sent down.
    corners = [area.get_paths()[0].vertices[:, 1] for area in axes.collections]
    assert [each.max() for each in corners] == pytest.approx([3.6, 3.6 + 6e-6 * up])


def test_labels_of_bytes_do_not_overlap():
    axes = draw(draw_bytes, [RUN, *({**t, "bytes_up": 1} for t in tasks(6, 2))])
    full, up, down = (text.get_position()[1] for text in axes.texts)
    assert full > up > down
    assert min(full - up, up - down) == pytest.approx(0.15)


@pytest.mark.parametrize(("devices", "lanes"), [(4, 4), (16, 16), (17, 3), (40, 3)])
def test_timeline_has_a_lane_a_device_until_there_are_too_many(devices, lanes):
    axes = draw(draw_timeline, [RUN, *tasks(80, devices)])
    assert len(axes.get_yticks()) == lanes
    assert axes.yaxis_inverted()


def test_timeline_draws_every_task_of_a_short_run():
    axes = draw(draw_timeline, RUNS["failures"])
    assert sum(len(each.get_paths()) for each in axes.collections) == 28
    crosses = [line for line in axes.lines if line.get_marker() == "X"]
    assert sum(len(line.get_xdata()) for line in crosses) == 8


def test_timeline_has_each_task_where_it_was_and_as_it_ended():
    """In the order of dispatch a lost one is the first, and one the last."""
    first, second = tasks(2, 1)
    times = {"dispatched_at": 1.0, "time": 4.0, "staleness": 3}
    again = {"dispatched_at": 4.0, "time": 5.0, "staleness": 0}
    failed = [
        lost({**first, "dispatched_at": start, "time": stop})
        for start, stop in ((0.0, 2.0), (6.0, 7.0))
    ]
    lines = [{**first, **times}, {**second, **again}, *failed]
    merged, gone = draw(draw_timeline, [RUN, *lines]).collections[:2]

    def spans(bars):
        sides = [path.vertices[:, 0] for path in bars.get_paths()]
        return [(side.min(), side.max()) for side in sides]

    assert spans(merged) == [(1, 4), (4, 5)]
    assert spans(gone) == [(0, 2), (6, 7)]
    stalest, freshest = (colormaps["viridis_r"](share) for share in (1.0, 0.0))
    assert merged.get_facecolor().tolist() == [[*stalest], [*freshest]]


def test_timeline_puts_the_fastest_device_on_top():
    slow, fast = ({**record, "device": n} for n, record in enumerate(tasks(2, 2)[::-1]))
    axes = draw(draw_timeline, [RUN, slow, fast])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "0"]


def test_timeline_says_what_it_leaves_out():
    every = draw(draw_timeline, [RUN, *tasks(6, 2)])
    assert every.get_title() == "Timeline of the fleet"
    part = draw(draw_timeline, [{**RUN, "every": 25}, *tasks(160, 2)])
    assert part.get_title() == "Timeline of the fleet (1 in 25), 50 to 150 of 200 s"


def test_window_is_the_middle_of_a_long_run_and_all_of_a_short_one():
    assert window(100.0, most_tasks=40) == (0.0, 100.0)
    assert window(100.0, most_tasks=80) == (25.0, 75.0)
    assert window(0.0, most_tasks=0) == (0.0, 0.0)


def test_stack_by_hand():
    assert stack([0, 1, 2, 3, 3], [2, 4, 3, 5, 4]) == [0, 1, 0, 0, 2]


intervals = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=30)


@given(intervals)
def test_stacked_intervals_overlap_nowhere_and_use_the_fewest_rows(intervals):
    spans = sorted((start, start + length) for start, length in intervals)
    rows = stack([start for start, _ in spans], [stop for _, stop in spans])
    at_once = []
    for moment in range(41):
        open_rows = [
            row
            for row, (start, stop) in zip(rows, spans, strict=True)
            if start <= moment < stop
        ]
        assert len(set(open_rows)) == len(open_rows)
        at_once.append(len(open_rows))
    assert max(rows, default=-1) + 1 == max(at_once)
