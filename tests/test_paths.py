"""A path is taken as a string or as an object, and nothing else is."""

from pathlib import Path

import pytest
from flwr.app import MetricRecord

from flwr_asyncdrop import AsyncFedAvg
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import read_trace
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.paths import as_path
from flwr_asyncdrop.report.write import draw_run, write_report
from tests.grids import HandlerGrid
from tests.runs import plus_one, record
from tests.strategy.test_strategy import ZEROS


class Named:
    """A path of another library."""

    def __init__(self, text):
        self.text = text

    def __fspath__(self):
        return self.text


@pytest.mark.parametrize("kind", [str, Path, Named])
def test_a_path_is_one_however_it_is_written(kind, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert as_path("folder", kind("runs/a b")) == Path("runs/a b")
    assert as_path("folder", kind("~/runs")) == Path("/home/me/runs")


@pytest.mark.parametrize(
    "wrong", [None, True, 1, ["runs"], {}, "", "a\0b", "a\ud800b", "~nobody-here/a"]
)
def test_anything_else_is_refused_in_one_line(wrong):
    with pytest.raises(ConfigError, match=r"^folder=") as caught:
        as_path("folder", wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "make",
    [
        Checkpointer,
        HistoryWriter,
        lambda path: Checkpointer("runs", resume=path),
        lambda path: read_trace(path, 1),
        lambda path: next(read_history(path)),
        lambda path: draw_run(path, "run.png"),
        lambda path: write_report([path], "out"),
        lambda path: write_report([], path),
    ],
)
def test_what_takes_a_path_refuses_what_is_none(make):
    with pytest.raises(ConfigError, match="=True must be a path: a string, or a Path"):
        make(True)


@pytest.mark.usefixtures("no_settling")
def test_a_run_is_saved_resumed_and_reported_by_strings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(rounds, **options):
        strategy = AsyncFedAvg(
            checkpointer=Checkpointer("run", every=1, **options),
            callbacks=[HistoryWriter("run/history.jsonl")],
        )
        grid = HandlerGrid(plus_one, node_ids=[1, 2])
        test = stop if rounds < 3 else lambda *_: MetricRecord({"accuracy": 0.5})
        strategy.start(grid, record(ZEROS), num_rounds=3, timeout=0, evaluate_fn=test)

    def stop(server_round, _):
        if server_round == 2:
            raise KeyboardInterrupt
        return MetricRecord({"accuracy": 0.25})

    with pytest.raises(KeyboardInterrupt):
        run(2)
    assert any(Path("run/checkpoints").iterdir())
    run(3, resume="run")
    records = [line["event"] for line in read_history("run/history.jsonl")]
    assert records.count("run") == 1
    assert draw_run("run/history.jsonl", "run.png").read_bytes()[1:4] == b"PNG"
    assert write_report("run", "out", target=0.3) == Path("out/report.html")
