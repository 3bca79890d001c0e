import io
import logging
from pathlib import Path

import pytest
from rich.console import Console

from flwr_asyncdrop.cli.display import (
    BarDisplay,
    LineDisplay,
    make_display,
    warnings_to,
)
from flwr_asyncdrop.cli.events import Ended, Failed, RunProgress, Started
from flwr_asyncdrop.cli.runs import LOG, RunSpec

SETTINGS = {"num-rounds": 2, "in-flight": 4}


@pytest.fixture
def run(tmp_path):
    return RunSpec("asyncdrop seed 0", tmp_path, SETTINGS, devices=10)


def console(*, terminal):
    return Console(
        file=io.StringIO(), force_terminal=terminal, color_system=None, width=100
    )


def printed(shown):
    return shown.console.file.getvalue()


def test_bars_are_for_terminals():
    assert type(make_display(console(terminal=True))) is BarDisplay
    assert type(make_display(console(terminal=False))) is LineDisplay


def test_lines_at_the_start_at_the_end_and_now_and_then(run):
    now = 0.0
    lines = LineDisplay(console(terminal=False), 3, 1, seconds=30.0, timer=lambda: now)
    lines.show(run, Started())
    for now in (29.0, 31.0, 32.0):
        lines.show(run, RunProgress(int(now) - 28, now))
    now = 65.4
    lines.show(run, Ended(RunProgress(8, 400.0, ("accuracy", 0.75))))
    assert printed(lines).splitlines() == [
        "started  asyncdrop seed 0",
        "running  asyncdrop seed 0: 3/8 updates, t 31 s",
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


def test_a_run_has_its_bar_while_it_goes_on(run):
    with BarDisplay(console(terminal=True), 2) as bars:
        bars.show(run, Started())
        bars.show(run, RunProgress(3, 120.0, ("accuracy", 0.25)))
        bars._bars.refresh()
        assert "3/8 t 120 s, accuracy 0.250" in printed(bars)
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
