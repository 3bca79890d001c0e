"""Numbers of NumPy and PyTorch are taken as Python's own, and saved as such."""

import json

import numpy as np
import pytest
import torch

from flwr_asyncdrop import AsyncFedAvg, FedBuff, SyncFedAvg
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet import DeviceProfile, speed_levels
from flwr_asyncdrop.observers.history import HistoryWriter
from flwr_asyncdrop.parameters import ANY, in_interval, whole_from
from flwr_asyncdrop.state_dict import to_plain
from tests.grids import HandlerGrid
from tests.runs import plus_one, record
from tests.strategy.test_strategy import ZEROS

pytestmark = pytest.mark.usefixtures("no_settling")

THREES = [3, 3.0, np.int64(3), np.uint8(3), np.float32(3), np.array(3), torch.tensor(3)]


def name_of(value):
    return f"{type(value).__name__}-{getattr(value, 'dtype', '')}"


@pytest.mark.parametrize("three", THREES, ids=name_of)
def test_a_whole_number_of_any_kind_is_an_int(three):
    checked = whole_from(1).check("n", three)
    assert (checked, type(checked)) == (3, int)


@pytest.mark.parametrize(
    "half", [0.5, np.float32(0.5), np.float64(0.5), torch.tensor(0.5)], ids=name_of
)
def test_a_share_of_any_kind_is_a_float(half):
    checked = in_interval("[0, 1]").check("x", half)
    assert (checked, type(checked)) == (0.5, float)


@pytest.mark.parametrize(
    "wrong", [np.array([3]), torch.tensor([3, 3]), np.float64("nan"), np.float32(2.5)]
)
def test_what_is_no_whole_number_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=r"^n=.*at least 1, and a whole number"):
        whole_from(1).check("n", wrong)


@pytest.mark.parametrize("wrong", [np.ones(2), torch.ones(2)], ids=name_of)
def test_an_array_is_said_to_be_one_where_all_else_will_do(wrong):
    """It was said that it must be any value."""
    with pytest.raises(ConfigError, match=r"^x=.* must be no array$"):
        ANY.check("x", wrong)


@pytest.mark.parametrize("three", THREES, ids=name_of)
@pytest.mark.parametrize("kind", [AsyncFedAvg, SyncFedAvg])
def test_a_run_takes_them_everywhere(kind, three, tmp_path):
    def run(folder, number):
        history = HistoryWriter(folder / "history.jsonl", timer=lambda: 0.0)
        strategy = kind(
            min_train_nodes=number,
            min_available_nodes=number,
            seed=number,
            evaluate_every=number,
            max_examples=number,
            fleet=speed_levels,
            checkpointer=Checkpointer(folder, every=1),
            callbacks=[history],
        )
        grid = HandlerGrid(plus_one, node_ids=range(1, 4))
        strategy.start(grid, record(ZEROS), num_rounds=number, timeout=0)
        lines = (folder / "history.jsonl").read_text().splitlines()
        return [{**json.loads(line), "wall": None} for line in lines]

    assert run(tmp_path / "other", three) == run(tmp_path / "own", 3)


def test_a_profile_of_numpys_numbers_is_one_of_pythons():
    of_numpy = DeviceProfile(
        seconds_per_task=np.float32(0.5), latency=np.int64(1), watts=np.float64(2)
    )
    assert of_numpy == DeviceProfile(seconds_per_task=0.5, latency=1, watts=2.0)
    assert {type(value) for value in vars(of_numpy).values()}.isdisjoint(
        {np.float32, np.float64, np.int64}
    )


def test_a_fleet_may_be_a_generator():
    def fleet(size):
        return (profile for profile in speed_levels(size))

    counts = []
    for build in (fleet, speed_levels):
        grid = HandlerGrid(plus_one, node_ids=range(1, 4))
        strategy = FedBuff(fleet=build, buffer_size=1)
        strategy.start(grid, record(ZEROS), num_rounds=3, timeout=0)
        counts.append([message.metadata.dst_node_id for message in grid.pushed])
    assert counts[0] == counts[1]


def test_the_state_of_an_own_object_may_have_them():
    state = {"step": np.int64(2), "shares": [np.float32(0.5)], "on": np.bool_(True)}
    assert to_plain(state) == {"step": 2, "shares": [0.5], "on": True}
    assert json.loads(json.dumps(to_plain(state))) == to_plain(state)
