"""How many devices a real SuperLink serves, with devices that are one process.

python -m benchmarks.edge.fleet_size 300 --max-poll 30

Over HTTP, on the newest Flower. All of it is on this machine: a fleet that is too large
for it loses its connections.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

from benchmarks.chaos.deployment import Deployment
from benchmarks.figures import Figure, say, show
from benchmarks.usage import cpu_seconds
from scripts.flwr_run import end_with_signals

__all__ = ["fleet_figures"]

_ROOT = Path(__file__).parents[2]
_IN_MEMORY = ":flwr-in-memory:"
_PATIENCE, _POLL = 1200.0, 1.0
_IDLE_SECONDS = 60.0
_PAUSE = 10  # a device pauses a tenth of its wait
_TASK_SECONDS = 5.0  # of the fastest device; the slowest takes 25
_IN_FLIGHT, _ROUNDS = 64, 4


def fleet_figures(devices: int, max_poll: float) -> Iterator[Figure]:
    """Let devices wait, until they look as seldom as they may, and then train."""
    with tempfile.TemporaryDirectory(prefix="fleet-size-") as folder:
        home = Path(folder)
        with Deployment(home, 0, database=_IN_MEMORY) as deployment:
            arguments = [deployment.address, devices, max_poll, _TASK_SECONDS]
            said = home / "devices.log"
            with said.open("w") as output:
                nodes = subprocess.Popen(
                    [
                        *(sys.executable, "-m", "benchmarks.edge.many_nodes"),
                        *map(str, arguments),
                    ],
                    cwd=_ROOT,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            try:
                yield from _measured(deployment, nodes, said, devices, max_poll)
            finally:
                nodes.kill()
                nodes.wait()


def _measured(
    deployment: Deployment,
    nodes: "subprocess.Popen[bytes]",
    said: Path,
    devices: int,
    max_poll: float,
) -> Iterator[Figure]:
    say(f"{devices} devices join")
    deadline = time.monotonic() + _PATIENCE
    while f"{devices} connected" not in said.read_text():
        if time.monotonic() > deadline or nodes.poll() is not None:
            raise RuntimeError(f"not all have joined: {said.read_text()[-2000:]}")
        time.sleep(_POLL)
    say("they wait")
    time.sleep(_PAUSE * max_poll)
    superlink = psutil.Process(deployment.superlink.pid)
    before = cpu_seconds(superlink)
    time.sleep(_IDLE_SECONDS)
    share = (cpu_seconds(superlink) - before) / _IDLE_SECONDS
    yield Figure("superlink_cpu_percent_per_idle_device", 100 * share / devices)

    in_flight = min(_IN_FLIGHT, devices)
    say(f"{in_flight} of them train at any moment")
    before = cpu_seconds(superlink)
    out = deployment.home / "run"
    settings = {"in-flight": in_flight, "num-rounds": _ROUNDS, "out-dir": str(out)}
    run = deployment.run(
        _ROOT,
        **settings,
        algo="hetero-asyncdrop",
        clock="wall",
        codec="packed",
    )
    if run.wait(_PATIENCE) != 0:
        raise RuntimeError(f"the run has failed\n{deployment.log_of(run)[-4000:]}")
    (history,) = out.rglob("history.jsonl")
    rows = [json.loads(line) for line in history.read_text().splitlines()]
    times = [row["time"] for row in rows if row["event"] == "update"]
    yield Figure("seconds_to_first_update", times[0])
    yield Figure("updates_per_s_afterwards", (len(times) - 1) / (times[-1] - times[0]))
    lost = sum(row["event"] == "failure" for row in rows)
    yield Figure("tasks_lost", lost)
    cpu = cpu_seconds(superlink) - before
    yield Figure("superlink_cpu_s_per_update", cpu / len(times))


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", type=int, nargs="?", default=100)
    parser.add_argument("--max-poll", type=float, default=3.0)
    chosen = parser.parse_args()
    end_with_signals()
    show({"fleet": lambda: fleet_figures(chosen.devices, chosen.max_poll)})


if __name__ == "__main__":
    main()
