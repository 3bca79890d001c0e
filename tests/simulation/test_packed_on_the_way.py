"""Arrays that travel as one give the same run, bit for bit."""

import sys
from pathlib import Path

import pytest
from flwr.app import ArrayRecord
from flwr.serverapp import Grid

from flwr_asyncdrop import LocalGrid, wire
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from tests.nightly import nightly

CUSTOM = Path(__file__).parents[2] / "examples" / "custom-algorithm"
SCAFFOLD = "custom_algorithm.scaffold:Scaffold"
SHORT = {"num-rounds": 3, "in-flight": 4, "local-steps": 4, "levels": 4, "model": "mlp"}


class FarGrid(Grid):
    """A LocalGrid as if it were far away; counts records, and those packed."""

    answers_at_once = False

    def __init__(self, grid):
        self.grid = grid
        self.records = self.packed = 0

    @property
    def run(self):
        return self.grid.run

    def set_run(self, *arguments):
        return self.grid.set_run(*arguments)

    def create_message(self, *arguments, **named):
        return self.grid.create_message(*arguments, **named)

    def get_node_ids(self):
        return self.grid.get_node_ids()

    def push_messages(self, messages):
        messages = list(messages)
        for message in messages:
            for record in wire.records_of(message.content, ArrayRecord).values():
                self.records += 1
                self.packed += wire.is_packed(record)
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids):
        return self.grid.pull_messages(message_ids)

    def send_and_receive(self, *arguments, **named):
        return self.grid.send_and_receive(*arguments, **named)


@pytest.fixture(autouse=True)
def outside(monkeypatch):
    monkeypatch.syspath_prepend(str(CUSTOM))
    yield
    for name in [name for name in sys.modules if name.startswith("custom_algorithm")]:
        del sys.modules[name]


def run(out, around=lambda grid: grid, **settings):
    given = {**SHORT, **settings, "out-dir": str(out)}
    with LocalGrid(
        "flwr_asyncdrop.client_app:app", num_nodes=8, run_config=given
    ) as local:
        grid = around(local)
        run_experiment(grid, RunConfig.parse(given))
    history = [without_wall(line) for line in read_history(out / "history.jsonl")]
    return history, (out / "model.safetensors").read_bytes(), grid


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        nightly({"codec": "none"}, 0, id="none"),
        nightly({"codec": "packed"}, 1, id="packed"),
        pytest.param(
            {"codec": "packed", "algo": "fedbuff", "model": "cnn"}, 1, id="full"
        ),
        nightly({"codec": "q4"}, 1, id="q4"),
        nightly({"codec": "topk-q4"}, 1, id="feedback"),
        nightly({"codec": "auto", "bandwidth-mbps": 1.0}, 1, id="auto"),
        pytest.param({"codec": "q4", "algo": SCAFFOLD}, 1, id="records-beside"),
    ],
)
def test_the_same_history_and_model(tmp_path, settings, share):
    *near, _ = run(tmp_path / "near", **settings)
    *far, grid = run(tmp_path / "far", FarGrid, **settings)
    assert far == near
    assert near[0][-1]["failures"] == {}
    assert grid.records >= 12
    assert grid.packed == share * grid.records
