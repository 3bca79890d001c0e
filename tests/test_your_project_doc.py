"""What the tutorial on one's own project shows of histories and checkpoints runs."""

import re

import pytest
import torch
from flwr.app import ArrayRecord, MetricRecord
from torch import nn

from flwr_asyncdrop import FedBuff, HeteroAsyncDrop, speed_levels
from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report import comparison_table
from tests.grids import HandlerGrid
from tests.runs import plus_one
from tests.test_docs import ROOT

PAGE = ROOT / "docs" / "tutorials" / "your-project.md"


class Net(nn.Sequential):
    def __init__(self):
        conv = nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1)
        super().__init__(*conv, nn.Flatten(), nn.Linear(4, 2))


def run(**config):
    """Run what the page shows."""
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Compare it")
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[0]
    names = {
        "HeteroAsyncDrop": HeteroAsyncDrop,
        "Net": Net,
        "config": config,
        "speed_levels": speed_levels,
        "torch": torch,
    }
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102  # our own
    names["strategy"].start(
        HandlerGrid(plus_one, range(8)),
        ArrayRecord(Net().state_dict()),
        num_rounds=2,
        evaluate_fn=lambda server_round, arrays: MetricRecord({"accuracy": 0.5}),
    )


@pytest.mark.usefixtures("no_settling")
def test_simulated_and_real_runs_of_a_project_are_not_compared(tmp_path):
    """Their histories did not say which clock their seconds are of."""
    for label, fleet in (("virtual", speed_levels), ("wall", None)):
        path = tmp_path / label / "seed-0" / "history.jsonl"
        strategy = FedBuff(in_flight=4, fleet=fleet, callbacks=[HistoryWriter(path)])
        strategy.start(
            HandlerGrid(plus_one, range(8)),
            ArrayRecord(Net().state_dict()),
            num_rounds=1,
            evaluate_fn=lambda server_round, arrays: MetricRecord({"accuracy": 0.5}),
        )
        (first, *_) = read_history(path)
        assert first["clock"] == label
    with pytest.raises(DataError, match="different clocks"):
        comparison_table([tmp_path])


@pytest.mark.usefixtures("no_settling")
def test_runs_of_a_project_are_compared_and_resumed(tmp_path):
    for label in ("one", "other"):
        run(runs=str(tmp_path), label=label, seed=0, resume=False)
    table = str(comparison_table([tmp_path]))
    rows = re.findall(r"\b(one|other)\b\W*(\d) ", table)
    assert rows == [("one", "1"), ("other", "1")], table
    again = {"runs": str(tmp_path), "label": "one", "seed": 0}
    with pytest.raises(ConfigError, match="can be resumed"):
        run(**again, resume=False)
    run(**again, resume=True)
