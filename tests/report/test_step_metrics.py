"""What an aggregator says of its steps: little is kept, and all of it is drawn."""

import tracemalloc
from math import inf

import numpy as np
import pytest
from matplotlib.figure import Figure

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report import summarise, write_report
from flwr_asyncdrop.report.aggregator import draw_step_metrics, in_words
from flwr_asyncdrop.report.reading import read_log
from flwr_asyncdrop.report.runlog import RunLog
from tests.report.histories import history, write

WALL = {"wall": {"seconds": 1.0}}


def steps(*metrics, seconds=0.01):
    """Return the lines of steps, one every so many seconds, of an aggregator."""
    return [
        {"event": "step", "version": n, "update": n, "time": seconds * n, **WALL}
        | {"metrics": each}
        for n, each in enumerate(metrics, start=1)
    ]


def lines_of(*metrics, **first):
    run, *others, end = history("asyncdrop-plus", 0, [0.3, 0.6])
    return [{**run, **first}, *steps(*metrics), *others, end]


def log_of(*metrics, **first):
    return RunLog.from_records(lines_of(*metrics, **first))


def panels(log):
    figure = Figure(figsize=(7.0, 2.5))
    draw_step_metrics(figure, log)
    shown = [axes for axes in figure.axes if axes.get_visible()]
    return figure.get_suptitle(), {
        axes.get_title(loc="center") or axes.get_title(loc="left"): axes
        for axes in shown
    }


def test_each_number_has_a_panel_and_what_is_null_is_left_out():
    log = log_of({"a": 1, "b": None}, {"a": None}, {"a": 3.5, "b": None, "c": -2e-9})
    assert [
        (name, times.tolist(), values.tolist())
        for name, times, values in log.step_metrics.curves()
    ] == [("a", [0.01, 0.03], [1.0, 3.5]), ("b", [], []), ("c", [0.03], [-2e-9])]
    title, drawn = panels(log)
    assert title == "Numbers of the aggregator"
    assert list(drawn) == ["a", "b", "c"]
    assert drawn["a"].lines[0].get_ydata().tolist() == [1.0, 3.5]
    assert drawn["b"].texts[0].get_text() == "Never a finite number"
    said = "What the aggregator says of each step. The last ones: a 3.5, c -2.000e-09."
    assert in_words(log) == said


def test_of_many_names_the_first_are_drawn():
    log = log_of({f"layer {n}": n for n in range(40)}, schema=3, every=100)
    title, drawn = panels(log)
    assert title == "Numbers of the aggregator (1 step in 100, 6 of 40)"
    assert list(drawn) == [f"layer {n}" for n in range(6)]


def test_what_no_axis_can_hold_is_left_out_too(tmp_path):
    log = log_of({"a": -1.7e308}, {"a": 1.7e308}, {"a": 1e300}, {"a": -1e300})
    ((_, _, values),) = log.step_metrics.curves()
    assert values.tolist() == [1e300, -1e300]
    figure = Figure(figsize=(7.0, 2.5), layout="constrained")
    draw_step_metrics(figure, log)
    figure.savefig(tmp_path / "drawn.png")


def test_names_of_strangers_are_shown_as_they_are():
    _, drawn = panels(log_of({"$a_b$ <b>\n|": 1.0, "x" * 500: 2.0}))
    first, second = drawn
    assert first == "$a_b$ <b> |"
    assert len(second) < 50


def test_long_runs_are_thinned_and_little_is_kept_of_a_step():
    count = 20_000
    lines = steps(*({"rho": n % 97} for n in range(count)))
    lines[777]["metrics"]["rho"] = 1e300
    run, *others = lines_of()
    tracemalloc.start()
    log = RunLog.from_records([run, *lines, *others])
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 1e6
    _, drawn = panels(log)
    (line,) = drawn["rho"].lines
    assert len(line.get_xdata()) <= 8000
    assert np.max(line.get_ydata()) == 1e300


@pytest.mark.parametrize("metrics", [None, [1], {"a": "much"}, {"a": [1]}, {"a": inf}])
def test_a_damaged_line_is_told(tmp_path, metrics):
    path = write(tmp_path / "run", lines_of(metrics))
    with pytest.raises(DataError, match=r"history\.jsonl is damaged"):
        read_log(path)


def test_the_page_has_the_picture_of_runs_that_say_numbers(tmp_path):
    said = lines_of({"correlation": 0.25}, {"correlation": 0.125})
    write(tmp_path / "runs" / "asyncdrop-plus" / "seed-0", said)
    silent = history("fedbuff", 0, [0.2, 0.5])
    write(tmp_path / "runs" / "fedbuff" / "seed-0", silent)
    page = write_report([tmp_path / "runs"], tmp_path / "report")
    pictures = {path.name for path in page.parent.glob("aggregator-*")}
    assert pictures == {"aggregator-asyncdrop-plus.png"}
    assert page.read_text().count("The last ones: correlation 0.125.") == 2


def test_steps_say_nothing_of_the_rest():
    with_steps, without = lines_of({"a": 1.0}), lines_of()
    assert summarise(with_steps).text() == summarise(without).text()
