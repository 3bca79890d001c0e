"""`flwr stop` saves a run of Flower's simulation engine."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from flwr_asyncdrop.checkpoint import newest
from scripts.flwr_run import end_processes, run_environment
from tests.nightly import once_in_the_gate
from tests.processes import ray_starts, superlink_starts

ROOT = Path(__file__).parents[2]
PATIENCE = 240
HISTORY = "callback:HistoryWriter"


def wait_for(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def updates_in(history):
    text = history.read_text() if history.exists() else ""
    return [json.loads(line)["update"] for line in text.splitlines() if "rank" in line]


@once_in_the_gate
@superlink_starts
@ray_starts
@pytest.mark.e2e
def test_flwr_stop_saves_a_simulation(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    environment = run_environment(home)
    out = tmp_path / "run"

    def flwr(*words):
        done = subprocess.run(
            ["flwr", *words],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    config = f"num-rounds=1000 in-flight=4 checkpoint-every=900 out-dir='{out}'"
    nodes = "num-supernodes=8 client-resources-num-cpus=1"
    try:
        flwr("run", ".", "--run-config", config, "--federation-config", nodes)
        wait_for(lambda: len(updates_in(out / "history.jsonl")) >= 3)
        (run,) = json.loads(flwr("list", "--format", "json"))["runs"]
        flwr("stop", str(run["run-id"]))
        wait_for(lambda: not (out / ".lock").exists())
    finally:
        end_processes(environment["ASYNCDROP_RUN"])
    saved = newest(out)
    count = saved.parts["run"]["state"]["updates"]
    # Lines behind an evaluation that has not ended are in the checkpoint.
    waiting = [e for e in saved.parts[HISTORY]["lines"] if e["event"] == "update"]
    written = updates_in(out / "history.jsonl")
    assert [*written, *(e["update"] for e in waiting)] == [*range(1, count + 1)]
