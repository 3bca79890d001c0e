"""What the flags of a Ray cluster come to; `bad_inputs.py` has what is refused."""

import os
import re
import shlex

import pytest

from flwr_asyncdrop.cli.backend import (
    Backend,
    add_backend,
    add_workers,
    backend_of,
)
from flwr_asyncdrop.cli.events import Failed
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.pool import RunPool
from flwr_asyncdrop.cli.runs import all_runs
from flwr_asyncdrop.cli.variants import Variant
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.simulation.gpus import VISIBLE


def parsed(line):
    parser = Parser()
    add_workers(parser)
    add_backend(parser)
    return backend_of(parser.parse_args(shlex.split(line)))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", Backend()),
        ("--workers 3", Backend(workers=3)),
        ("--workers 3 --gpus 2", Backend(workers=3, gpus=("0", "1"))),
        ("--backend ray", Backend(address="auto")),
        (
            "--backend ray --address head:6379 --actors 8 --gpus-per-actor 0.25",
            Backend(address="head:6379", actors=8, gpus_per_actor=0.25),
        ),
    ],
)
def test_flags_come_to_a_backend_and_back(line, expected, monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert parsed(line) == expected
    assert parsed(expected.flags()) == expected


def test_all_gpus_are_those_that_are_there(monkeypatch):
    monkeypatch.setenv(VISIBLE, "4,2,0")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert parsed("--workers 8 --gpus all").gpus == ("4", "2", "0")


def tell_gpus(_):
    """Fail, as a data set, by what this process sees."""
    raise OSError(f"GPUs {os.environ.get(VISIBLE)}.")


def test_runs_of_a_comparison_see_one_gpu_each(tmp_path):
    settings = {"dataset": f"{__name__}:tell_gpus", "model": "mlp"}
    runs = all_runs([Variant("one", settings)], [0, 1], 4, tmp_path)
    with RunPool(Backend(gpus=("6", "7")).shared(2, 0)) as pool:
        ends = [event for _, event in pool.do(runs) if isinstance(event, Failed)]
    told = [re.search(r"GPUs (\S+)\.", end.reason)[1] for end in ends]
    assert sorted(told) == ["6", "7"]


def test_runs_side_by_side_take_gpus_in_turn():
    three = Backend(gpus=("0", "1", "2"))
    assert [each.gpus for each in three.shared(4, 0)] == [
        ("0", "1", "2"),
        ("1", "2", "0"),
        ("2", "0", "1"),
        ("0", "1", "2"),
    ]
    # Two workers each: 0 and 1, 2 and 0.
    assert [each.gpus[:2] for each in three.shared(2, 2)] == [("0", "1"), ("2", "0")]


def test_runs_side_by_side_share_what_fits(monkeypatch):
    room = {0.25: 6, 1.0: 0}
    monkeypatch.setattr(
        "flwr_asyncdrop.cli.backend.room_of", lambda address, cpus, gpus: room[gpus]
    )
    cluster = Backend(address="auto", gpus_per_actor=0.25)
    assert cluster.shared(4, 2) == [Backend(0, "auto", 0, 0.25, 4)] * 4
    assert len(cluster.shared(8, 0)) == 6
    assert cluster.shared(0, 0) == []
    assert Backend().shared(4, 2) == [Backend(workers=2)] * 4
    assert Backend().shared(0, 0) == []
    with pytest.raises(ConfigError, match="no room for an actor with 1 CPU and 1 GPU"):
        Backend(address="auto", gpus_per_actor=1.0).shared(4, 2)
