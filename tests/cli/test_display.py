import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from flwr_asyncdrop.cli.bars import BarDisplay
from flwr_asyncdrop.cli.display import make_display, warnings_to
from flwr_asyncdrop.cli.events import (
    Ended,
    Failed,
    Preparing,
    RunProgress,
    Started,
    Warned,
)
from flwr_asyncdrop.cli.lines import LineDisplay
from flwr_asyncdrop.cli.runs import LOG, RunSpec

SETTINGS = {"num-rounds": 2, "in-flight": 4}


@pytest.fixture
def run(tmp_path):
    return RunSpec("asyncdrop seed 0", tmp_path, SETTINGS, devices=10)


def console(*, terminal, term="xterm"):
    return Console(
        file=io.StringIO(),
        force_terminal=terminal,
        color_system=None,
        width=100,
        _environ={"TERM": term},
    )


def printed(shown):
    return shown.console.file.getvalue()


def test_bars_are_for_terminals():
    assert type(make_display(console(terminal=True))) is BarDisplay
    assert type(make_display(console(terminal=False))) is LineDisplay
    # Rich draws nothing there: a run was silent to its end.
    assert type(make_display(console(terminal=True, term="dumb"))) is LineDisplay


def test_lines_at_the_start_at_the_end_and_now_and_then(run):
    now = 0.0
    lines = LineDisplay(console(terminal=False), 3, 1, seconds=30.0, timer=lambda: now)
    lines.show(run, Started())
    for now in (29.0, 31.0, 32.0):
        lines.show(run, RunProgress(int(now) - 28, now))
    now = 65.4
    lines.show(run, Ended(RunProgress(8, 400.0, ("accuracy", 0.75))))
    # Two updates in 31 - 29 s, and five are left.
    assert printed(lines).splitlines() == [
        "started  asyncdrop seed 0",
        "running  asyncdrop seed 0: 3/8 updates, t 31 s, 5 s left",
        "complete asyncdrop seed 0 [2/3]: 8/8 updates, t 400 s, accuracy 0.750 in 65 s",
    ]


def test_a_run_that_ends_by_its_time_has_no_total_of_updates(tmp_path):
    settings = {**SETTINGS, "max-seconds": 99.5}
    run = RunSpec("asyncdrop seed 0", tmp_path, settings, devices=10)
    lines = LineDisplay(console(terminal=False), seconds=0.0)
    bars = BarDisplay(console(terminal=True))
    with bars:
        for display in (lines, bars):
            display.show(run, Started())
            display.show(run, RunProgress(5, 40.2))
        assert "running  asyncdrop seed 0: 5 updates, t 40 s" in printed(lines)
        _, task = bars._bars.tasks
        assert (task.completed, task.total) == (40, 100)


def test_a_failed_run_is_reported_with_its_log(run):
    lines = LineDisplay(console(terminal=False))
    lines.show(run, Started())
    lines.show(run, Failed("no data in [here]"))
    assert str(run.folder) not in printed(lines)
    (run.folder / LOG).touch()
    lines.show(run, Failed("no data in [here]"))
    *_, reason, log = printed(lines).splitlines()
    assert reason == "FAILED   asyncdrop seed 0 [2/1]: no data in [here]"
    assert Path(log.split(": ")[1]) == run.folder / LOG


def test_a_run_says_what_it_waits_for_before_its_first_update(run):
    with BarDisplay(console(terminal=True), 2) as bars:
        bars.show(run, Started())
        bars.show(run, Preparing("reading the data"))
        bars._bars.refresh()
        assert "reading the data" in printed(bars)
        _, task = bars._bars.tasks
        assert task.total is None
        before = len(printed(bars))
        bars.show(run, RunProgress(1, 20.0, ("accuracy", 0.25)))
        bars._bars.refresh()
        after = printed(bars)[before:]
        assert "reading the data" not in after.splitlines()[-1]
        assert "1/8" in after


def test_a_single_run_shows_who_trains_what_travelled_and_how_the_metric_went(run):
    progress = RunProgress(
        6, 90.0, ("accuracy", 0.75), 2, (0.0, 0.25, 0.75), (2, 2, 1), 12_300_000
    )
    with BarDisplay(console(terminal=True)) as bars:
        bars.show(run, Started())
        bars.show(run, RunProgress(0, 0.0))
        bars.show(run, progress)
        bars._bars.refresh()
        shown = printed(bars)
        assert "▁▃█ accuracy 0.750" in shown
        details = "t 90 s | in flight 2 2 1, fastest first | 12.3 MB both ways | 2 lost"
        assert details in shown


def test_updates_of_an_earlier_process_do_not_count_for_the_time_that_is_left(run):
    now = 0.0
    lines = LineDisplay(console(terminal=False), seconds=0.0, timer=lambda: now)
    lines.show(run, Started())
    lines.show(run, RunProgress(4, 0.0))
    now = 10.0
    lines.show(run, RunProgress(5, 0.0))
    last = printed(lines).splitlines()[-1]
    assert last.endswith("5/8 updates, t 0 s, 30 s left")


def test_quiet_shows_only_what_went_wrong(run):
    quiet = make_display(console(terminal=True), 2, 1, quiet=True)
    with quiet:
        quiet.show(run, Started())
        quiet.show(run, Preparing("reading the data"))
        quiet.show(run, RunProgress(1, 20.0))
        quiet.note("1 of 2 runs complete already")
        quiet.show(run, Ended(RunProgress(8, 400.0)))
        assert printed(quiet) == ""
        quiet.show(run, Failed("no data"))
        assert printed(quiet) == "FAILED   asyncdrop seed 0 [3/2]: no data\n"


@pytest.mark.parametrize("quiet", [True, False])
def test_a_warning_that_many_runs_give_is_said_once(run, quiet):
    lines = make_display(console(terminal=False), 2, quiet=quiet)
    for device in (3, 4):
        lines.show(run, Warned("device %d is gone", f"device {device} is gone"))
    lines.show(run, Warned("no space", "no space"))
    assert printed(lines).splitlines() == [
        "warning  asyncdrop seed 0: device 3 is gone",
        "warning  asyncdrop seed 0: no space",
    ]


def test_a_run_has_its_bar_while_it_goes_on(run):
    with BarDisplay(console(terminal=True), 2) as bars:
        bars.show(run, Started())
        bars.show(run, RunProgress(3, 120.0, ("accuracy", 0.25)))
        bars._bars.refresh()
        assert "3/8" in printed(bars)
        assert "accuracy 0.250" in printed(bars)
        bars.show(run, Ended(RunProgress(8, 400.0)))
        shown = printed(bars)
        assert "complete asyncdrop seed 0 [1/2]: 8/8 updates, t 400 s" in shown
        bars._bars.refresh()
        after = printed(bars).removeprefix(shown)
        assert "1/2" in after
        assert "asyncdrop" not in after


def test_warnings_are_said_here_and_nothing_elsewhere(capsys):
    logger = logging.getLogger("flwr.asyncdrop")
    handlers = logging.getLogger("flwr").handlers[:]
    said = []
    with warnings_to(said.append):
        logger.info("all is well")
        logger.warning("device %d is gone", 3)
    assert said == ["warning: device 3 is gone"]
    assert logging.getLogger("flwr").handlers == handlers
    assert capsys.readouterr() == ("", "")


def test_a_warning_that_cannot_be_formatted_ends_nothing(capsys, monkeypatch):
    """As with the handlers of Python's own, its error is printed."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", False)  # to pytest's
    said = []
    with warnings_to(said.append):
        logging.getLogger("flwr").warning("%d devices", "no")
        logging.getLogger("flwr").warning("gone")
    assert said == ["warning: gone"]
    assert "Logging error" in capsys.readouterr().err
