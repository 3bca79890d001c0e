"""What the flags of a Ray cluster come to; `bad_inputs.py` has what is refused."""

import shlex

import pytest

from flwr_asyncdrop.cli.backend import (
    Backend,
    add_backend,
    add_workers,
    backend_of,
)
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.exceptions import ConfigError


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
        ("--backend ray", Backend(address="auto")),
        (
            "--backend ray --address head:6379 --actors 8 --gpus-per-actor 0.25",
            Backend(address="head:6379", actors=8, gpus_per_actor=0.25),
        ),
    ],
)
def test_flags_come_to_a_backend_and_back(line, expected):
    assert parsed(line) == expected
    assert parsed(expected.flags()) == expected


def test_runs_side_by_side_share_what_fits(monkeypatch):
    room = {0.25: 6, 1.0: 0}
    monkeypatch.setattr(
        "flwr_asyncdrop.cli.backend.room_of", lambda address, cpus, gpus: room[gpus]
    )
    cluster = Backend(address="auto", gpus_per_actor=0.25)
    assert cluster.shared(4, 2) == (4, Backend(0, "auto", 0, 0.25, 4))
    assert cluster.shared(8, 0)[0] == 6
    assert cluster.shared(0, 0)[0] == 0
    assert Backend().shared(4, 2) == (4, Backend(workers=2))
    with pytest.raises(ConfigError, match="no room for an actor with 1 CPU and 1 GPU"):
        Backend(address="auto", gpus_per_actor=1.0).shared(4, 2)
