"""The wall clock on a real SuperLink with real SuperNodes, one of them killed."""

import signal
import time
from pathlib import Path

import pytest

from benchmarks.chaos.deployment import Deployment
from flwr_asyncdrop.observers.history_reading import read_history
from tests.nightly import once_in_the_gate
from tests.processes import superlink_starts

pytestmark = superlink_starts

ROOT = Path(__file__).parents[2]
NODES = 3
ROUNDS = 3


@pytest.fixture
def deployment(tmp_path):
    with Deployment(tmp_path, NODES) as deployment:
        yield deployment


def updates(out_dir):
    path = out_dir / "history.jsonl"
    lines = list(read_history(path)) if path.exists() else []
    return [line for line in lines if line["event"] == "update"]


def wait_for_updates(deployment, run, out_dir, count, deadline):
    while len(updates(out_dir)) < count:
        assert run.poll() is None, deployment.log_of(run)
        assert time.monotonic() < deadline, "no update in time"
        time.sleep(0.5)


def greetings(log):
    said = ("s of local steps a task", "does not say what it can do")
    return sum(log.count(each) for each in said)


def wait_for_greetings(deployment, run, count, deadline):
    """Wait until devices have said what they can do, or had no time to."""
    while greetings(deployment.log_of(run)) < count:
        assert run.poll() is None, deployment.log_of(run)
        assert time.monotonic() < deadline, "no greeting in time"
        time.sleep(0.5)


@once_in_the_gate
@pytest.mark.e2e
def test_a_real_fleet_trains_to_the_end_though_a_device_dies(deployment, tmp_path):
    out = tmp_path / "out"
    run = deployment.run(
        ROOT,
        **{
            "clock": "wall",
            "model": "mlp",
            "codec": "q4",
            "num-rounds": ROUNDS,
            "in-flight": NODES,
            "local-steps": 3,
            "timeout": 45.0,
            "out-dir": str(out),
        },
    )
    deadline = time.monotonic() + 900
    wait_for_updates(deployment, run, out, 2, deadline)
    wait_for_greetings(deployment, run, NODES, deadline)
    victim = deployment.nodes[NODES - 1]
    victim.send_signal(signal.SIGKILL)
    run.wait(timeout=deadline - time.monotonic())
    assert "model.safetensors" in deployment.log_of(run), deployment.logs()
    merged = updates(out)
    assert len(merged) == ROUNDS * NODES
    assert len({line["device"] for line in merged}) >= 2
    for line in merged:  # submodels, four bits a number; 70 kB are the full model
        assert max(line["bytes_down"], line["bytes_up"]) < 9_000
    first, *_, last = read_history(out / "history.jsonl")
    assert first["config"]["clock"] == "wall"
    assert last["event"] == "end"
    assert 0 < last["time"] < 900
