import json
import struct

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report import draw_run
from flwr_asyncdrop.report.curves import draw_metric
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
def test_every_run_gives_a_png_that_is_worth_its_space(tmp_path, records):
    history = write(tmp_path / "history.jsonl", records)
    png = draw_run(history, tmp_path / "new" / "run.png")
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert 1600 <= width <= 2400
    assert 1000 <= height <= 1600
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


def test_units_and_levels_get_a_row_of_their_own():
    group = {"name": "hidden", "size": 2, "counts": [[1, 0]]}
    counts = {"ranks": [0], "updates": [1], "bin": 1, "groups": [group]}
    units = {"event": "units", **counts, "wall": {"seconds": 0.0}}
    plain = compose(RunLog.from_records(RUNS["few devices"]))
    more = compose(RunLog.from_records([*RUNS["few devices"], units]))
    assert more.get_figheight() > plain.get_figheight()
    titles = [axes.get_title() for axes in more.axes]
    assert "Units that each rank trains" in titles
    assert "Accuracy on the labels of each speed level" in titles


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
    assert texts == ["best 50.00% at update 1", "final 40.00% at update 2"]


def test_metric_panel_says_once_that_the_final_value_is_the_best():
    axes = draw(draw_metric, RUNS["loss"])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["best and final 1 at update 1"]


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


def test_timeline_puts_the_fastest_device_on_top():
    slow, fast = ({**record, "device": n} for n, record in enumerate(tasks(2, 2)[::-1]))
    axes = draw(draw_timeline, [RUN, slow, fast])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["1", "0"]


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
