"""What the tutorial on algorithms shows runs."""

import pytest
import torch

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.aggregation import Update
from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.observers.history_reading import read_history
from tests.app.own import APP, TINY
from tests.test_docs import ROOT, modules

PAGE = ROOT / "docs" / "tutorials" / "your-algorithm.md"
SHOWN = {
    "rolling:Rolling": {"rolling-step": 3},
    "window:Window": {"window": 2.5},
    "curious:Curious": {},
    "timely:Timely": {"least": 0.2},
    "tiers:Tiers": {"tiers": 2},
    "measured:MeasuredBuff": {"buffer-size": 2},
}


@pytest.fixture(autouse=True)
def shown(tmp_path, monkeypatch):
    """Write the files that the page shows where they are found."""
    for name, code in modules(PAGE):
        (tmp_path / name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


def run(algo, out):
    config = RunConfig.parse(
        {
            **TINY,
            **SHOWN[algo],
            "algo": algo,
            "levels": 2,
            "speed-ratio": 2.0,
            "num-rounds": 4,
            "out-dir": str(out),
        }
    )
    with LocalGrid(APP, num_nodes=4, workers=0, run_config=config.settings) as grid:
        run_experiment(grid, config)
    return read_history(out / "history.jsonl")


def test_all_that_the_page_shows_is_here():
    assert {name for name, _ in modules(PAGE)} == {
        f"{algo.partition(':')[0]}.py" for algo in SHOWN
    }


def test_slower_devices_train_fewer_steps(tmp_path):
    updates = [e for e in run("timely:Timely", tmp_path) if e["event"] == "update"]
    work = {(each["rank"], each["work"]) for each in updates}
    assert work == {(0, 1), (1, 0.5)}
    assert {e["time"] - e["dispatched_at"] for e in updates} == {1.0}


def test_a_tier_does_not_wait_for_another(tmp_path):
    updates = [e for e in run("tiers:Tiers", tmp_path) if e["event"] == "update"]
    # One device of 1 s and one of 2 s at a time: each is a tier of its own.
    assert [(e["time"], e["rank"]) for e in updates[:3]] == [(1, 0), (2, 1), (2, 0)]


def test_tiers_of_a_model_that_counts_its_batches():
    tiers = algorithm("tiers:Tiers")(tiers=2).aggregator(4)
    state = {"w": torch.zeros(2), "bn.num_batches_tracked": torch.tensor(0)}

    def send(weight, count, rank):
        arrays = dict(zip(state, (torch.full((2,), weight), count), strict=True))
        return tiers.merge(state, Update(arrays, {}, 0, 1, rank=rank, num_ranks=2))

    assert not send(2.0, torch.tensor(4), 0)
    assert send(4.0, torch.tensor(8), 0)
    assert [tensor.tolist() for tensor in state.values()] == [[3.0, 3.0], 6]
    assert not send(8.0, torch.tensor(2), 1)
    assert send(6.0, torch.tensor(2), 1)  # both tiers have stepped as often
    assert [tensor.tolist() for tensor in state.values()] == [[5.0, 5.0], 4]


def test_an_aggregator_says_how_stale_its_steps_are(tmp_path):
    lines = list(run("measured:MeasuredBuff", tmp_path))
    steps = [each for each in lines if each["event"] == "step"]
    stale = [each["staleness"] for each in lines if each["event"] == "update"]
    pairs = [sum(pair) / 2 for pair in zip(stale[::2], stale[1::2], strict=True)]
    assert [each["metrics"]["staleness"] for each in steps] == pairs
    assert {0.0} < set(pairs)


@pytest.mark.parametrize("algo", SHOWN)
def test_it_learns(algo, tmp_path):
    history = run(algo, tmp_path / "run")
    losses = [e["metrics"]["loss"] for e in history if e["event"] == "evaluation"]
    assert losses[-1] < losses[0]


def test_devices_wait_for_the_window(tmp_path):
    history = run("window:Window", tmp_path / "run")
    updates = [e for e in history if e["event"] == "update"]
    # Devices of 1 s and 2 s, two at a time, and a step at 2.5 s.
    assert [e["time"] for e in updates[:4]] == [1.0, 2.0, 3.5, 4.5]
    assert {e["staleness"] for e in updates} == {0}
