"""Numbers that an aggregator says of its steps."""

import json
import math

import numpy as np
import pytest
import torch

from flwr_asyncdrop import AsyncStrategy
from flwr_asyncdrop.aggregation import Aggregator, Clipped
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import DeviceProfile
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.server.callbacks import Callback
from tests.checkpoint.small_runs import run
from tests.checkpoint.test_resume import checkpoints
from tests.grids import HandlerGrid
from tests.runs import plus_one, record

pytestmark = pytest.mark.usefixtures("no_settling")


class Pairs(Aggregator):
    """Steps with every second update, and says how many it has had."""

    def __init__(self):
        self.count = 0

    def merge(self, state, update):
        self.count += 1
        return self.count % 2 == 0 and self.step(state)

    def step(self, state):
        for tensor in state.values():
            tensor += 1
        return True

    def metrics(self):
        return {"count": self.count}

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class ByTime(Pairs):
    """Steps every 2.5 s, and not with updates."""

    waits_for = 2
    steps_at = 2.5

    def merge(self, state, update):
        self.count += 1
        return False

    def flush(self, state):
        self.steps_at += 2.5
        return self.step(state)

    def state_dict(self):
        return {"count": self.count, "steps_at": self.steps_at}


class Told(Callback):
    def __init__(self):
        self.steps, self.events = [], []

    def on_step(self, state, metrics):
        self.steps.append((state.time, state.version, state.updates, dict(metrics)))
        self.events.append("step")

    def on_update(self, state, merged):
        self.events.append("update")


def start(aggregator, *callbacks, rounds=3):
    told = Told()
    strategy = AsyncStrategy(
        aggregator=aggregator,
        in_flight=2,
        fleet=lambda count: [DeviceProfile(1.0), DeviceProfile(2.0)],
        fraction_evaluate=0.0,
        callbacks=[told, *callbacks],
    )
    grid = HandlerGrid(plus_one, node_ids=(1, 2))
    strategy.start(grid, record({"w": torch.zeros(2)}), num_rounds=rounds)
    return told


@pytest.mark.parametrize("wrapped", [lambda own: own, lambda own: Clipped(own, 9.0)])
def test_callbacks_are_told_of_each_step_before_its_update(wrapped):
    told = start(wrapped(Pairs()))
    assert told.steps == [
        (2, 1, 2, {"count": 2}),
        (3, 2, 4, {"count": 4}),
        (4, 3, 6, {"count": 6}),
    ]
    assert told.events == ["update", "step", "update"] * 3


def test_steps_by_the_time_are_told():
    told = start(ByTime())
    assert told.steps == [(2.5, 1, 2, {"count": 2}), (5.0, 2, 4, {"count": 4})]


def test_who_says_nothing_has_no_lines(tmp_path):
    class Silent(Pairs):
        metrics = Aggregator.metrics

    path = tmp_path / "history.jsonl"
    assert start(Silent(), HistoryWriter(path)).steps == []
    assert not any(line["event"] == "step" for line in read_history(path))


@pytest.mark.parametrize("every", [1, 2])
def test_the_history_has_them(tmp_path, every):
    path = tmp_path / "history.jsonl"
    start(Pairs(), HistoryWriter(path, every=every))
    lines = [line for line in read_history(path) if line["event"] == "step"]
    assert [line["metrics"] for line in lines] == [{"count": n} for n in (2, 4, 6)][
        ::every
    ]
    first = lines[0]
    assert (first["version"], first["update"], first["time"]) == (1, 2, 2.0)


def test_what_is_not_finite_is_null(tmp_path):
    class Odd(Pairs):
        def metrics(self):
            return {"nan": math.nan, "inf": np.float32("inf"), "half": np.float64(0.5)}

    path = tmp_path / "history.jsonl"
    start(Odd(), HistoryWriter(path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    first = next(line for line in lines if line["event"] == "step")
    assert first["metrics"] == {"nan": None, "inf": None, "half": 0.5}


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (None, "None"),
        (0.5, "0.5"),
        ({"a": "b"}, "{'a': 'b'}"),
        ({"a": [1.0, 2.0]}, "a"),
        ({"a": torch.ones(1)}, "a"),
        ({"a": None}, "a"),
        ({1: 2.0}, "1"),
    ],
    ids=str,
)
def test_what_is_no_numbers_by_name_is_refused(returned, says):
    class Wrong(Pairs):
        def metrics(self):
            return returned

    with pytest.raises(ConfigError, match=r"^metrics of Wrong returned .*") as error:
        start(Clipped(Wrong(), 9.0))
    assert str(error.value).endswith(": return numbers by their names, or {} for none")
    assert says in str(error.value)


def test_an_integer_that_no_float_can_hold_is_refused():
    """It ended the run in an OverflowError of whoever draws it."""

    class Wrong(Pairs):
        def metrics(self):
            return {"count": 10**5000}

    says = "^metrics of Wrong: the metric 'count' is a number of 16610 bits: return int"
    with pytest.raises(ConfigError, match=says):
        start(Wrong())


def test_one_that_has_them_as_an_attribute_is_refused():
    class Taken(Pairs):
        def __init__(self):
            super().__init__()
            self.metrics = {"count": 0}

    with pytest.raises(ConfigError, match="metrics of Taken is no function"):
        start(Taken())


def test_a_run_resumes_with_the_same_steps(tmp_path):
    whole = run(tmp_path, "asyncdrop", aggregator=Pairs())
    assert '"step"' in (tmp_path / "history.jsonl").read_text()
    for checkpoint in checkpoints(tmp_path)[:0:-1]:
        again = run(tmp_path, "asyncdrop", resume=checkpoint, aggregator=Pairs())
        assert again == whole
