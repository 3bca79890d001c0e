"""`flwr run` on a Ray cluster of two nodes, of which one is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.ray_nodes import RayNodes
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from tests.nightly import nightly

pytest.importorskip("ray")
pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]
SETTINGS = {
    "clock": "virtual",
    "model": "mlp",
    "num-rounds": 30,
    "in-flight": 4,
    "local-steps": 40,
    "seed": 5,
    "checkpoint-every": 1,
}


def flwr_run(out, address="", **settings):
    values = {**SETTINGS, **settings, "out-dir": str(out)}
    toml = " ".join(f"{key}={json.dumps(value)}" for key, value in values.items())
    ray = {"RAY_ADDRESS": address} if address else {}
    return subprocess.Popen(
        [
            *(sys.executable, "scripts/flwr_run.py", ".", "--run-config", toml),
            *("--federation-config", "num-supernodes=12 client-resources-num-cpus=1"),
        ],
        cwd=ROOT,
        env={**os.environ, "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1", **ray},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def done(run):
    """Return what a run has printed, which has to end well."""
    log, _ = run.communicate(timeout=300)
    assert run.returncode == 0, log
    return log


def events(out, kind):
    path = out / "history.jsonl"
    lines = read_history(path) if path.exists() else []
    return [line for line in lines if line["event"] == kind]


def of(out):
    history = [without_wall(line) for line in read_history(out / "history.jsonl")]
    model = load_file(out / "model.safetensors")
    return history, {name: tensor.tolist() for name, tensor in model.items()}


@pytest.mark.parametrize("updates", [nightly(5)])
def test_no_device_is_blamed_and_the_run_is_the_one_without_it(tmp_path, updates):
    done(flwr_run(tmp_path / "whole"))
    out = tmp_path / "killed"
    with RayNodes(2, {"PYTHONPATH": str(ROOT)}) as cluster:
        run = flwr_run(out, cluster.address)
        deadline = time.monotonic() + 200
        while len(events(out, "update")) < updates:
            assert run.poll() is None, done(run)
            assert time.monotonic() < deadline
            time.sleep(0.1)
        cluster.nodes[1].raylet.send_signal(signal.SIGKILL)
        log = done(run)
    assert "a worker of Flower's simulation has died" in log
    assert events(out, "failure") == []
    if events(out, "end")[-1].get("ended"):
        assert "every task came back from a dead worker" in log
        done(flwr_run(out, resume=str(out)))
    assert of(out) == of(tmp_path / "whole")
