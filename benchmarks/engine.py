"""LocalGrid against Flower's simulation engine: the same strategy, the same no-op."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.figures import Figure, say
from benchmarks.noop import make_client_app, run_strategy
from flwr_asyncdrop import LocalGrid

__all__ = ["engine_figures"]

NODES = 104
ENGINE_ROUNDS = 30
LOCAL_ROUNDS = 250

_ENGINE = """
import warnings
from flwr.simulation import run_simulation
from benchmarks.noop import client_app, server_app
warnings.simplefilter("ignore")
run_simulation(
    server_app, client_app, num_supernodes={nodes},
    backend_config={{"client_resources": {{"num_cpus": 1, "num_gpus": 0.0}}}},
)
"""


def engine_figures() -> Iterator[Figure]:
    """Measure updates a second on LocalGrid and on Flower's engine: the better of two.

    One after the other, and then the other way round. And milliseconds an update on
    LocalGrid with twice the weights, 2 MB.
    """
    local = _local_rate()
    say("Flower's engine")
    engine = max(_engine_rate(), _engine_rate())
    yield Figure("flower_engine_updates_per_s", engine)
    local = max(local, _local_rate())
    yield Figure("localgrid_updates_per_s", local)
    yield Figure("localgrid_vs_flower_engine", local / engine, 10, at_least=True)
    yield Figure("sim_noop_ms", 1e3 / _local_rate(megabytes=2), 2)


def _local_rate(megabytes: int = 1) -> float:
    with LocalGrid(make_client_app, num_nodes=NODES, workers=1) as grid:
        return run_strategy(grid, LOCAL_ROUNDS, megabytes)


def _engine_rate() -> float:
    """Run Flower's engine in a process of its own, as Ray outlives its runs."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "rate.json"
        done = subprocess.run(
            [sys.executable, "-c", _ENGINE.format(nodes=NODES)],
            env={
                **os.environ,
                "ASYNCDROP_BENCH_OUTPUT": str(output),
                "ASYNCDROP_BENCH_ROUNDS": str(ENGINE_ROUNDS),
                "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            },
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode or not output.exists():
            raise RuntimeError(f"Flower's engine has failed\n{done.stderr}")
        return float(json.loads(output.read_text()))
