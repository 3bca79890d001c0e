"""The ready app with ``track``: each tool reads back what the history has."""

import json
import logging
import subprocess
import sys
import warnings
from importlib.util import find_spec

import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.exceptions import ConfigError, Interrupted
from flwr_asyncdrop.observers import (
    MlflowTracker,
    TensorBoardTracker,
    WandbTracker,
)
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState
from scripts.flwr_run import free_ports
from tests.observers import ready_app
from tests.observers.orders import begin, resume
from tests.observers.trackers.readers import READERS, TOOLS, finished, mlflow_runs

SMALL = {"num-rounds": 5, "checkpoint-every": 2}
pytestmark = pytest.mark.filterwarnings(
    # Of the tools and of what they import
    "ignore::DeprecationWarning",
    "ignore::FutureWarning",
    "ignore::PendingDeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)


class Stops(Callback):
    """Raises at an update, between two checkpoints or at a moment between events."""

    def __init__(self, update, error):
        self.update, self.error = update, error

    def on_update(self, state, merged):
        if state.updates == self.update and not isinstance(self.error, Interrupted):
            raise self.error

    def on_pause(self, state):
        if state.updates == self.update and isinstance(self.error, Interrupted):
            raise self.error


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    """No account, no server and no file outside of the test's folder."""
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_API_KEY", "WANDB_MODE", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


@pytest.fixture(params=TOOLS)
def tool(request):
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        __import__(request.param)
    return request.param


def run(settings, callbacks=()):
    return ready_app.run({**SMALL, **settings}, callbacks)


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    return run({"out-dir": str(tmp_path_factory.mktemp("untracked"))})


def points_of(history):
    """Return the points that a history stands for, worked out from its lines alone."""
    points = {}

    def add(name, line, value):
        points.setdefault(name, []).append((line["update"], line["time"], value))

    for line in history:
        if line["event"] == "evaluation":
            for name, value in line["metrics"].items():
                if not isinstance(value, list):
                    add(f"{line['source']}/{name}", line, value)
    updates = [line for line in history if line["event"] == "update"]
    for last in updates[1::2]:
        of_round = [line for line in updates if line["round"] == last["round"]]
        staleness = sum(line["staleness"] for line in of_round) / 2
        add("round/staleness", last, staleness)
        add("total/seconds", last, last["time"])
        add("total/rounds", last, last["round"])
        names = set().union(*(line["metrics"] for line in of_round))
        for name in names:
            values = [line["metrics"][name] for line in of_round]
            add(f"train/{name}", last, sum(values) / 2)
    return {name: sorted(of_name) for name, of_name in points.items()}


def steps(points):
    return {name: [step for step, _, _ in found] for name, found in points.items()}


def check_points(found, history):
    expected = points_of(history)
    assert expected.keys() <= found.keys()
    for name, points in expected.items():
        assert [p[0] for p in sorted(found[name])] == [p[0] for p in points], name
        for mine, theirs in zip(sorted(found[name]), points, strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5, abs=0.011), name
    end = history[-1]
    for key in ("bytes_down", "bytes_up"):
        assert sorted(found[f"total/{key}"])[-1][2] == pytest.approx(end[key], rel=1e-6)
    assert sorted(found["total/failures"])[-1][2] == 0


def test_the_tool_reads_what_the_history_has(tool, untracked, tmp_path):
    out = tmp_path / "run"
    assert run({"out-dir": str(out), "track": tool}) == untracked
    points, settings = READERS[tool](out)
    check_points(points, untracked)
    assert str(settings["model"]) == "mlp"
    assert float(settings["lr"]) == 0.05
    assert int(float(settings["seed"])) == 0
    assert settings["flwr-asyncdrop"]


@pytest.mark.parametrize("error", [RuntimeError("no power"), Interrupted(2)])
def test_a_run_that_resumes_has_no_point_twice(tool, error, untracked, tmp_path):
    """At update 7 the points of update 6 are written, the checkpoint is of 4.

    After a signal there is one of update 7.
    """
    out = tmp_path / "run"
    with pytest.raises(type(error)):
        run({"out-dir": str(out), "track": tool}, [Stops(7, error)])
    assert max(steps(READERS[tool](out)[0])["total/rounds"]) == 6
    assert run({"resume": str(out), "track": tool}) == untracked
    check_points(READERS[tool](out)[0], untracked)


def test_several_at_once(untracked, tmp_path):
    tools = [name for name in TOOLS if find_spec(name)]
    if len(tools) < 2:
        pytest.skip(f"installed: {', '.join(tools) or 'none'}")
    out = tmp_path / "run"
    assert run({"out-dir": str(out), "track": ", ".join(tools)}) == untracked
    for name in tools:
        check_points(READERS[name](out)[0], untracked)


def test_a_run_that_replaces_another_has_its_own_points(tool, untracked, tmp_path):
    out = tmp_path / "run"
    run({"out-dir": str(out), "track": tool, "num-rounds": 2})
    run({"out-dir": str(out), "track": tool, "overwrite": True})
    if tool == "tensorboard":
        check_points(READERS[tool](out)[0], untracked)
    if tool == "mlflow":
        assert len(mlflow_runs(out)[1]) == 2
    if tool == "wandb":
        assert len(list(out.glob("wandb/offline-run-*"))) == 2


@pytest.mark.parametrize("text", ["tensorbord", "mlflow,mlflow", "mlflow,", "a b"])
def test_a_tool_that_is_unknown_or_twice(text):
    with pytest.raises(ConfigError, match=r"track='.*' must be some of tensorboard"):
        RunConfig.parse({"track": text})


def names_of_runs(tool, out):
    """Return how a tool that names runs calls those of a folder."""
    if tool == "mlflow":
        return [run.info.run_name for run in mlflow_runs(out)[1]]
    files = sorted(out.glob("wandb/offline-run-*/*.wandb"))
    records = [record for path in files for record in finished(path)]
    return [r.run.display_name for r in records if r.WhichOneof("record_type") == "run"]


@pytest.mark.parametrize("folder", ["fedbuff/seed-0", "a run, of 3 devices"])
def test_a_run_is_called_as_its_folder(tool, folder, tmp_path):
    """The runs of a comparison are in folders `seed-0`, one a label."""
    if tool == "tensorboard":
        pytest.skip("TensorBoard shows the folders")
    out = tmp_path / folder
    run({"out-dir": str(out), "track": tool, "num-rounds": 1})
    assert set(names_of_runs(tool, out)) == {folder}


def test_metrics_whose_names_mlflow_takes_for_one_are_two(tmp_path):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    first = BUILD["mlflow"](tmp_path)
    place = first.begin({"a?": 1, "a!": 2}, 0.0)
    first.write({"top@1": 1.0, "top#1": 2.0, "top_1": 3.0}, 1, 1.0)
    saved = json.loads(json.dumps(first.where(place)))
    second = BUILD["mlflow"](tmp_path)
    second.resume(saved, 1, 0.0)
    second.write({"top_1": 6.0, "top#1": 5.0, "top@1": 4.0}, 2, 2.0)
    second.finish({}, 2, 2.0, "finished")
    points, settings = READERS["mlflow"](tmp_path)
    values = {name: [value for _, _, value in of] for name, of in points.items()}
    assert values == {
        "top_1": [1.0, 4.0],
        "top_1_2": [2.0, 5.0],
        "top_1_3": [3.0, 6.0],
    }
    assert settings == {"a_": "1", "a__2": "2"}


BUILD = {
    "tensorboard": lambda out: TensorBoardTracker(out / "tensorboard"),
    "mlflow": lambda out: MlflowTracker(uri=f"sqlite:///{out}/mlruns/mlflow.db"),
    "wandb": lambda out: WandbTracker(folder=out),
}


def test_what_is_done_again_and_differs_stands_there_once(tool, tmp_path):
    """On the wall clock a run that resumes is not the one that was cut off.

    TensorBoard's file is cut off, too. The others delete nothing.
    """

    def after(updates):
        state = RunState.start_from({}, seed=0)
        state.updates, state.time = updates, float(updates)
        return state

    first = BUILD[tool](tmp_path)
    begin(first, after(0))
    first.on_round(after(2), 1)
    saved = json.loads(json.dumps(first.state_dict()))
    first.on_round(after(4), 200)
    first.on_interrupt(after(4))
    second = BUILD[tool](tmp_path)
    second.load_state_dict(saved)
    resume(second, after(2))
    second.on_round(after(4), 2)
    second.on_round(after(6), 3)
    second.on_end(after(6))
    points = READERS[tool](tmp_path)[0]["total/rounds"]
    there = 2 if tool == "tensorboard" else 200
    assert [(step, value) for step, _, value in points] == [(2, 1), (4, there), (6, 3)]


BEGINS = """
import sys
from flwr_asyncdrop.observers import MlflowTracker
MlflowTracker(uri=sys.argv[1]).begin({}, 0.0)
"""


def test_runs_that_begin_at_once_share_a_new_database(tmp_path):
    """As those of `asyncdrop compare --jobs 2` do with MLFLOW_TRACKING_URI."""
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    command = [sys.executable, "-c", BEGINS, f"sqlite:///{tmp_path}/mlruns/mlflow.db"]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0]
    assert len(mlflow_runs(tmp_path)[1]) == 2
    assert not list(tmp_path.glob("mlruns/.*"))


def test_an_experiment_that_another_run_has_just_made(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed")
    BUILD["mlflow"](tmp_path).begin({}, 0.0)
    look = mlflow.MlflowClient.get_experiment_by_name
    sees = iter([False, True])
    monkeypatch.setattr(
        mlflow.MlflowClient,
        "get_experiment_by_name",
        lambda client, name: look(client, name) if next(sees) else None,
    )
    BUILD["mlflow"](tmp_path).begin({}, 0.0)
    assert len(mlflow_runs(tmp_path)[1]) == 2


def test_a_server_that_is_not_there_ends_no_run(tmp_path, monkeypatch, caplog):
    pytest.importorskip("mlflow", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_ports(1)[0]}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    out = tmp_path / "run"
    with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
        history = run({"out-dir": str(out), "track": "mlflow", "num-rounds": 1})
    assert history[-1]["event"] == "end"
    assert not (out / "mlruns").exists()
    said = [r.getMessage() for r in caplog.records if "MLflow" in r.getMessage()]
    assert len(said) == 1
    assert "MLflow gets no more points" in said[0]


def test_nobody_who_is_logged_in_is_told(tmp_path, caplog):
    pytest.importorskip("wandb", reason="wandb is not installed")
    with caplog.at_level(logging.WARNING, logger="flwr.asyncdrop"):
        run({"out-dir": str(tmp_path / "run"), "track": "wandb", "num-rounds": 1})
    said = [r.getMessage() for r in caplog.records if "logged in" in r.getMessage()]
    assert len(said) == 1
    assert str(tmp_path / "run" / "wandb") in said[0]


def test_who_is_logged_in_is_asked_as_the_library_wants(tmp_path, capfd, monkeypatch):
    pytest.importorskip("wandb", reason="wandb is not installed")
    tracker = BUILD["wandb"](tmp_path)
    assert tracker._chosen_mode() == "offline"
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    assert tracker._chosen_mode() == "online"
    assert "deprecated" not in capfd.readouterr().err
