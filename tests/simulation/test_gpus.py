"""Workers that see one GPU each. There is none here: CUDA's variable is looked at."""

import os

import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.simulation import LocalGrid, RayRunner, gpus
from flwr_asyncdrop.simulation.gpus import VISIBLE, visible_gpus

APP = "grid_apps:app"


@pytest.fixture(autouse=True)
def _no_variable(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)


@pytest.fixture
def machine_with(monkeypatch):
    def install(count, variable=None):
        monkeypatch.setattr(gpus.torch.cuda, "device_count", lambda: count)
        if variable is not None:
            monkeypatch.setenv(VISIBLE, variable)

    return install


@pytest.mark.parametrize(
    ("there", "variable", "count", "expected"),
    [
        (4, None, 2, ("0", "1")),
        (4, None, 0, ("0", "1", "2", "3")),
        (2, "6,3", 0, ("6", "3")),
        (2, " 6 , 3 ", 1, ("6",)),
        (1, "GPU-8932f937,1", 0, ("GPU-8932f937",)),  # torch counts what is valid
        (2, "", 2, ("0", "1")),
    ],
)
def test_the_first_gpus_that_this_process_sees(
    there, variable, count, expected, machine_with
):
    machine_with(there, variable)
    assert visible_gpus(count) == expected


def test_more_than_there_are_and_none(machine_with):
    machine_with(2)
    with pytest.raises(ConfigError, match="gpus=3, and torch sees 2 here: give no"):
        visible_gpus(3)
    machine_with(0)
    with pytest.raises(ConfigError, match="sees no GPU here, and gpus=all: leave it"):
        visible_gpus()


@pytest.mark.parametrize(
    "wrong",
    [
        *({"gpus": gpus} for gpus in (-1, 1025, "0,1", ["0,1"], [0, 1], 1.5, [""])),
        {"gpus": 1, "workers": 0},
    ],
)
def test_what_is_no_number_of_gpus_is_refused(wrong, machine_with):
    machine_with(4)
    with pytest.raises(ConfigError, match="gpus="):
        LocalGrid(APP, num_nodes=1, **wrong)


@pytest.mark.parametrize("given", [1, ["0"]])
def test_without_cuda_it_is_refused_before_anything_starts(given, machine_with):
    machine_with(0)
    with pytest.raises(ConfigError, match="sees no GPU here"):
        LocalGrid("nowhere:app", num_nodes=1, gpus=given)


def test_a_runner_has_its_own(machine_with):
    machine_with(1)
    runner = RayRunner.__new__(RayRunner)
    with pytest.raises(ConfigError, match="gpus=1 spreads worker processes"):
        LocalGrid(num_nodes=1, gpus=1, runner=runner)


def seen(grid, count):
    """Return the GPU that each of `count` workers sees, by its process number."""
    found = {}
    for _ in range(20):
        asked = [
            Message(
                RecordDict({"task": ConfigRecord({"number": 0.2})}),
                1000 + node,
                "train.visible",
            )
            for node in range(2 * count)
        ]
        for reply in grid.send_and_receive(asked):
            facts = reply.content["facts"]
            found[facts["pid"]] = facts["visible"]
        if len(found) == count:
            break
    return found


def test_workers_take_gpus_in_turn_and_so_do_their_successors(machine_with):
    machine_with(2, "5,7")
    with LocalGrid(APP, num_nodes=8, workers=4, gpus=2) as grid:
        before = seen(grid, 4)
        assert sorted(before.values()) == ["5", "5", "7", "7"]
        victim = psutil.Process(next(pid for pid, gpu in before.items() if gpu == "7"))
        victim.kill()
        victim.wait(300)
        after = seen(grid, 4)
        assert victim.pid not in after
        assert sorted(after.values()) == ["5", "5", "7", "7"]
    assert os.environ[VISIBLE] == "5,7"


def test_by_default_workers_see_what_the_first_one_saw(machine_with):
    machine_with(2)
    with LocalGrid(APP, num_nodes=2, workers=1, gpus=["3"]) as grid:
        assert set(seen(grid, 1).values()) == {"3"}
    with LocalGrid(APP, num_nodes=2, workers=1) as grid:
        assert "3" not in seen(grid, 1).values()


def test_a_module_that_looks_for_gpus_as_it_is_imported_sees_the_one(machine_with):
    machine_with(2)
    from early_cuda import make_app

    with LocalGrid(make_app, num_nodes=1, workers=1, gpus=["1"]) as grid:
        (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, "train")])
    assert reply.content["facts"]["visible"] == "1"
