"""The comparison of real containers with what the virtual clock predicts."""

import json
import sys
from types import SimpleNamespace

import pytest

from benchmarks.shares import __main__ as shares
from benchmarks.shares.figure import draw
from benchmarks.shares.prediction import (
    SHARES,
    _trace,
    is_complete,
    is_predicted,
    predict,
    seconds_per_step,
)
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report.runlog import RunLog
from tests.nightly import by_night


def write(path, lines, **more):
    first = {"event": "run", "schema": 2, "seed": 0, "full_bytes": 1, **more}
    text = "".join(
        f"{json.dumps({**line, 'wall': {'seconds': 0}})}\n" for line in [first, *lines]
    )
    path.write_text(text)
    return path


def update(device, dispatched_at, time):
    return {
        "event": "update",
        "device": device,
        "dispatched_at": dispatched_at,
        "time": time,
    }


def test_the_fastest_device_is_the_one_of_the_shortest_median(tmp_path):
    # Device 0 takes 4, 6 and 20 s, device 1 9 s; a task has 3 steps.
    lines = [update(0, 0, 4), update(0, 4, 10), update(0, 10, 30), update(1, 0, 9)]
    history = write(tmp_path / "history.jsonl", lines)
    assert seconds_per_step(history, {"local-steps": 3}) == 2.0


@pytest.mark.parametrize(
    ("end", "complete"),
    [
        ([{"event": "end", "time": 300.0}], True),
        ([{"event": "end", "time": 20.0, "ended": "error"}], False),
        ([], False),
    ],
)
def test_a_run_that_was_cut_off_is_not_there(end, complete, tmp_path):
    """Its history is there from its start on, and has an end after Ctrl-C."""
    history = write(tmp_path / "history.jsonl", end)
    assert is_complete(history) == complete


def test_no_run_is_not_there(tmp_path):
    assert not is_complete(tmp_path / "history.jsonl")
    (tmp_path / "history.jsonl").touch()
    assert not is_complete(tmp_path / "history.jsonl")


def test_runs_of_other_settings_are_not_those_that_are_asked_for(
    tmp_path, monkeypatch, capsys
):
    # It is for a process of its own.
    monkeypatch.setattr(shares, "end_with_signals", lambda: None)
    given = ["shares", f"--data={tmp_path}", f"--out={tmp_path}", "--seconds=60"]
    monkeypatch.setattr(sys, "argv", [*given, "--seed=7"])
    config = {**shares._CONFIG, "max-seconds": 60.0, "seed": 3}
    for algorithm in shares.ALGORITHMS:
        folder = tmp_path / "real" / algorithm
        folder.mkdir(parents=True)
        write(folder / "history.jsonl", [{"event": "end", "time": 60.0}], config=config)
    assert shares.main() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("is of a run with seed=3: choose another --out, or the same")


def test_a_fleet_that_does_not_train_is_said_in_a_line(tmp_path, monkeypatch, capsys):
    def train(*arguments):
        raise shares.TrialError("fedavg does not end")

    monkeypatch.setattr(shares, "end_with_signals", lambda: None)
    monkeypatch.setattr(shares, "containers_run", lambda: True)
    monkeypatch.setattr(shares, "train", train)
    given = ["shares", f"--data={tmp_path}", f"--out={tmp_path}"]
    monkeypatch.setattr(sys, "argv", given)
    assert shares.main() == 1
    assert capsys.readouterr().err.splitlines()[-1] == "fedavg does not end"


def test_a_prediction_is_of_its_settings_and_seconds(tmp_path):
    config = {"seed": 3}
    assert not is_predicted(config, 0.5, tmp_path)
    end = [{"event": "end", "time": 60.0}]
    write(tmp_path / "history.jsonl", end, config=config)
    assert not is_predicted(config, 0.5, tmp_path)
    (tmp_path / "fleet.csv").write_text("seconds_per_step\n0.5\n0.625\n")
    assert not is_predicted(config, 0.5, tmp_path)
    (tmp_path / "fleet.csv").write_text(_trace(0.5))
    assert is_predicted(config, 0.5, tmp_path)
    assert not is_predicted({"seed": 4}, 0.5, tmp_path)
    assert not is_predicted(config, 0.25, tmp_path)


def test_the_data_are_in_the_folder_that_is_meant(tmp_path, monkeypatch):
    """Compose takes "data" for a volume's name."""
    monkeypatch.chdir(tmp_path)
    given = shares._parser().parse_args(["--data", "data", "--out", "out"])
    assert (given.data, given.out) == (tmp_path / "data", tmp_path / "out")


def test_a_run_is_waited_for_as_long_as_it_is_to_take(tmp_path):
    """One of 900 s or more was ended as one that hangs."""
    waited = []

    def communicate(timeout):
        waited.append(timeout)
        return "", None

    end = {"event": "end", "time": 5000.0}
    done = write(tmp_path / "done.jsonl", [end]).read_text()
    fleet = SimpleNamespace(
        app="/app",
        data="/data",
        results="/run",
        flwr=lambda *arguments: SimpleNamespace(communicate=communicate),
        read=lambda path: done,
    )
    config = {"algo": "fedavg", "max-seconds": 5000.0}
    shares._run(fleet, config, tmp_path / "history.jsonl")
    assert waited[0] > 5000


@pytest.fixture(scope="module")
def predicted(tmp_path_factory):
    out = tmp_path_factory.mktemp("predicted")
    config = {"algo": "async-fedavg", "model": "mlp", "local-steps": 2}
    limits = {"num-rounds": 1000, "max-seconds": 20.5, "lr-milestones": ""}
    predict({**config, **limits, "in-flight": len(SHARES)}, 0.5, out)
    return RunLog.from_records(read_history(out / "history.jsonl"))


@by_night
def test_a_device_of_a_fifth_of_the_share_takes_five_times_as_long(predicted):
    # 2 steps of 0.5 s on the fastest: 20.5 s are 20 tasks there, and 4 on the slowest.
    counts = [
        int((predicted.updates.device == device).sum()) for device in range(len(SHARES))
    ]
    assert counts == [20, 16, 12, 8, 4]
    assert predicted.complete


@by_night
def test_the_figure_shows_both(predicted, tmp_path):
    logs = {kind: {"fedavg": predicted} for kind in ("real", "predicted")}
    assert draw(logs, tmp_path / "shares.png").stat().st_size > 10_000
