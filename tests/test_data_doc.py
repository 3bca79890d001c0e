"""What docs/data.md shows of data sets, models and metrics of one's own runs."""

import re

import pytest
import torch

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.app import Classification
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.observers.history_reading import read_history
from tests.app.own import APP, TINY
from tests.test_docs import ROOT

TEXT = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
MODULE, METRIC = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_a_module_of_ones_own_is_trained(tmp_path, monkeypatch):
    (tmp_path / "plane_of_mine.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = {"dataset": "plane_of_mine:load", "model": "plane_of_mine:build"}
    out = tmp_path / "out"
    config = RunConfig.parse({**TINY, **own, "num-rounds": 4, "out-dir": str(out)})
    with LocalGrid(APP, num_nodes=2, workers=0, run_config=config.settings) as grid:
        run_experiment(grid, config)
    losses = [
        event["metrics"]["loss"]
        for event in read_history(out / "history.jsonl")
        if event["event"] == "evaluation"
    ]
    assert losses[-1] < losses[0]


def test_a_metric_of_ones_own_is_that_of_all_batches():
    names = {"Classification": Classification}
    exec(compile(METRIC, "data.md", "exec"), names)  # noqa: S102  # our own
    task = names["TopTwo"](3)
    logits = torch.tensor([[3.0, 2, 1], [3, 2, 1], [1, 2, 3], [1, 3, 2]])
    labels = torch.tensor([0, 1, 0, 1])  # first, second, third, first
    batches = [
        task.totals(logits[part], labels[part]) for part in (slice(3), slice(3, 4))
    ]
    totals = {name: batches[0][name] + batches[1][name] for name in batches[0]}
    assert task.metrics(totals) == {
        "accuracy": 0.5,
        "loss": pytest.approx(Classification(3).metrics(totals)["loss"]),
        "top2": 0.75,
    }
