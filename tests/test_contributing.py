"""What CONTRIBUTING shows runs."""

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord
from torch import nn

from flwr_asyncdrop import AsyncStrategy, LocalGrid, speed_levels
from flwr_asyncdrop.aggregation import Aggregator, Mixing
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.app import Dataset, LearningTask, Regression
from flwr_asyncdrop.masks import MaskPolicy
from flwr_asyncdrop.objectives import LocalObjective, LocalSteps
from flwr_asyncdrop.parameters import in_interval, parameter
from flwr_asyncdrop.simulation import Runner, load_client_app
from flwr_asyncdrop.submodel import merge_
from tests.grids import HandlerGrid
from tests.runs import mlp, plus_one

TEXT = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
IMPORTED = {
    "Aggregator": Aggregator,
    "Algorithm": Algorithm,
    "Dataset": Dataset,
    "F": F,
    "LearningTask": LearningTask,
    "LocalObjective": LocalObjective,
    "LocalSteps": LocalSteps,
    "MaskPolicy": MaskPolicy,
    "Mixing": Mixing,
    "Regression": Regression,
    "Runner": Runner,
    "dataclass": dataclass,
    "in_interval": in_interval,
    "merge_": merge_,
    "nn": nn,
    "parameter": parameter,
    "torch": torch,
}


@pytest.fixture
def shown():
    """Return the names that all blocks define, one after the other."""
    names = {**IMPORTED, "__name__": "contributing"}
    for block in BLOCKS:
        exec(compile(block, "CONTRIBUTING.md", "exec"), names)  # noqa: S102  # our own
    return names


@pytest.mark.parametrize("of", ["Mine", "Half"])
@pytest.mark.usefixtures("no_settling")
def test_an_algorithm_and_an_aggregation(shown, of):
    made = (
        {"algorithm": shown["Mine"](rate=1.0)}
        if of == "Mine"
        else {"aggregator": shown["Half"](), "masks": shown["Rolling"]()}
    )
    strategy = AsyncStrategy(
        mlp(),
        torch.zeros(1, 4),
        **made,
        in_flight=2,
        fraction_evaluate=0.0,
        fleet=partial(speed_levels, num_levels=2),
        min_available_nodes=1,
    )
    grid = HandlerGrid(plus_one)
    result = strategy.start(grid, ArrayRecord(mlp().state_dict()), num_rounds=2)
    shapes = {m.content["arrays"]["0.weight"].shape for m in grid.pushed}
    assert shapes == {(3, 4)}
    moved = result.arrays.to_torch_state_dict()["0.bias"] - mlp().state_dict()["0.bias"]
    assert moved.max() > 0


def test_a_runner(shown):
    app = load_client_app("flwr_asyncdrop.client_app:app")
    with LocalGrid(num_nodes=2, runner=shown["Here"](app)) as grid:
        assert len(grid.get_node_ids()) == 2


def test_a_model_and_a_task(shown):
    data = Dataset(
        *(torch.zeros(4, 3), torch.zeros(4), torch.zeros(2, 3), torch.zeros(2)),
        Regression(),
    )
    assert shown["regressor"](data, 0.5)(data.train_x).shape == (4, 1)
    loss = shown["Ranking"]().loss(torch.tensor([[0.0, 1.0]]), torch.tensor([1.0]))
    assert loss == 1.0


def test_every_extension_is_shown():
    for name in ("Aggregator", "MaskPolicy", "Algorithm", "LocalObjective", "Runner"):
        assert any(f"({name})" in block for block in BLOCKS), name
