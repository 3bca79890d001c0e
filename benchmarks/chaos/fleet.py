"""A broken run on a real SuperLink with real SuperNodes, all of which are killed."""

import subprocess
import time
from collections import deque
from pathlib import Path

from benchmarks.chaos import server
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.deployment import Deployment
from benchmarks.chaos.faults import Fault, Plan
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.server import Settings

__all__ = ["run_fleet"]

_ROOT = Path(__file__).parents[2]
_APP = Path(__file__).with_name("fleet_app")
_NODES = 6
_SETTINGS = Settings("wall", rounds=6, in_flight=5, timeout=30.0)
_CLIENTS = {
    Fault.RAISES: 6,
    Fault.EXITS: 1,
    Fault.KILLED: 2,
    Fault.LATE: 1,
    Fault.HANGS: 1,
    Fault.NAN: 3,
    Fault.SHAPE: 3,
    Fault.GARBAGE: 2,
    Fault.MISSING: 2,
    Fault.NO_EXAMPLES: 2,
}
_MESSAGES = {
    Fault.DUPLICATE: 3,
    Fault.AGAIN: 3,
    Fault.NOT_SENT: 2,
    Fault.SWALLOWED: 1,
    Fault.NODE_LEAVES: 1,
}
_CRASHES = (Fault.EXITS, Fault.KILLED)
# After so many merges.
_KILL_NODE = (4, 16)
_KILL_SUPERLINK = (8, 20)
_SECONDS_DOWN = 3.0
_PATIENCE = 300.0
_POLL = 0.25


def run_fleet(folder: Path, *, seed: int = 0) -> Audit:
    """Run it, break what can be broken, and audit what comes out.

    The ServerApp runs beside its SuperLink and outlives it; see `docs/robustness.md`
    for the other way, in which it is interrupted and resumed.

    Parameters
    ----------
    folder : Path
        Where the files of the run and of Flower go; made.
    seed : int
        Seed of the order of the faults.

    Raises
    ------
    RuntimeError
        If the run does not end.
    """
    merges = _SETTINGS.merges
    clients = Plan.draw(_CLIENTS, fine=merges - 6, seed=seed)
    messages = Plan.draw(_MESSAGES, fine=merges - 6, seed=seed + 1)
    ledger = server.prepare(folder, _SETTINGS, clients, messages)
    home = folder / "flower"
    home.mkdir()
    started = time.perf_counter()
    with Deployment(
        home, _NODES, survives_superlink=True, PYTHONPATH=str(_ROOT)
    ) as deployment:
        run = deployment.run(
            _APP,
            **{"chaos-dir": str(folder), "late-seconds": 35.0, "hang-seconds": 90.0},
        )
        _break(deployment, run, ledger, folder)
    return Audit.of("fleet", folder, merges, time.perf_counter() - started)


def _break(
    deployment: Deployment,
    run: "subprocess.Popen[bytes]",
    ledger: Ledger,
    folder: Path,
) -> None:
    """Kill processes until the run has ended."""
    deadline = time.monotonic() + _PATIENCE
    node_kills, link_kills = deque(_KILL_NODE), deque(_KILL_SUPERLINK)
    crashes = _Crashes(ledger)
    victims = iter(range(_NODES))
    while not (folder / "model.safetensors").exists():
        # The log stream of a run breaks with the SuperLink that it comes from.
        untouched = len(link_kills) == len(_KILL_SUPERLINK)
        if untouched and run.poll() is not None:
            raise RuntimeError(f"the run failed\n{deployment.log_of(run)}")
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"the run did not end in {_PATIENCE:g} s\n{deployment.logs()}"
            )
        merged = server.merges_so_far(folder)
        broken = crashes.new()
        if node_kills and merged >= node_kills[0]:
            node_kills.popleft()
            broken.append(next(victims))
        for number in broken:
            ledger.note("harness", fault=Fault.NODE_KILLED)
            deployment.restart_node(number)
        if link_kills and merged >= link_kills[0]:
            link_kills.popleft()
            ledger.note("harness", fault=Fault.SUPERLINK_KILLED)
            deployment.restart_superlink(_SECONDS_DOWN)
        time.sleep(_POLL)


class _Crashes:
    """Finds SuperNodes whose ClientApp has crashed: they wait a minute for it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seen = 0

    def new(self) -> list[int]:
        """Return the partitions of the SuperNodes that it has happened to lately."""
        crashed = [
            task["partition"]
            for task in self._ledger.entries("task")
            if task["fault"] in _CRASHES
        ]
        news, self._seen = crashed[self._seen :], len(crashed)
        return news
