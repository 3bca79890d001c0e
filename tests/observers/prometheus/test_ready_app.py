"""The ready app with metrics-port is the same run, watched."""

import socket

import pytest

from flwr_asyncdrop.exceptions import ConfigError, Interrupted
from flwr_asyncdrop.server.callbacks import Callback
from tests.observers.prometheus.scrapes import Scrape
from tests.observers.ready_app import run


class Watcher(Callback):
    """Scrapes after every round."""

    def __init__(self, port):
        self.port = port
        self.scrapes = []

    def on_round(self, state, number):
        self.scrapes.append(Scrape(self.port))


class Stops(Callback):
    """Interrupts the run after its second round."""

    def __init__(self):
        self.rounds = 0

    def on_round(self, state, number):
        self.rounds += 1

    def on_pause(self, state):
        if self.rounds == 2:
            raise Interrupted(2)


@pytest.fixture
def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def unseen(tmp_path_factory):
    return run({"out-dir": str(tmp_path_factory.mktemp("unseen"))})


def test_a_run_that_is_watched_is_the_same_run(unseen, tmp_path, port):
    watcher = Watcher(port)
    seen = run({"out-dir": str(tmp_path / "seen"), "metrics-port": port}, [watcher])
    assert seen == unseen
    last = watcher.scrapes[-1]
    evaluations = [line for line in seen if line["event"] == "evaluation"]
    shown = int(last["asyncdrop_evaluation_round"])
    (expected,) = (e["metrics"] for e in evaluations if e["round"] == shown)
    assert last.by("asyncdrop_evaluation", "metric") == pytest.approx(
        {name: value for name, value in expected.items() if isinstance(value, float)}
    )
    (info,) = (s for s in last.samples if s.name == "asyncdrop_run_info")
    assert info.labels["algorithm"] == "hetero-asyncdrop"
    assert (info.labels["model"], info.labels["num_rounds"]) == ("mlp", "3")


def test_a_run_whose_port_is_taken_has_not_begun(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="cannot be opened"):
            run({"out-dir": str(tmp_path), "metrics-port": port})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("watched", ["before", "after"])
def test_a_run_goes_on_watched_or_not(watched, unseen, tmp_path, port):
    """Checkpoints do not mind callbacks that come and go."""
    folder = str(tmp_path / "halted")
    metrics = {"metrics-port": port}

    with pytest.raises(Interrupted):
        run({"out-dir": folder, **(metrics if watched == "before" else {})}, [Stops()])
    again = run({"resume": folder, **(metrics if watched == "after" else {})})
    assert again == unseen
