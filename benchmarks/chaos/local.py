"""Broken runs on LocalGrid: clients, messages, nodes, workers and the server itself.

    python -m benchmarks.chaos.local FOLDER NODES WORKERS

is the server's process, which is killed and started again.
"""

import logging
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import torch
from numpy.typing import NDArray

from benchmarks.chaos import server
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.server import Settings
from flwr_asyncdrop import LocalGrid

__all__ = ["LOCAL_RUNS", "LocalRun", "run_local"]

_PATIENCE = 180.0
_POLL = 0.05
_LATE_SECONDS = 12.0  # the deadline of a task that should take 10 s, and a bit
_HANG_SECONDS = 30.0
_SPOILED = {
    Fault.NAN: 6,
    Fault.INFINITE: 3,
    Fault.SHAPE: 4,
    Fault.TEXT: 2,
    Fault.GARBAGE: 3,
    Fault.MISSING: 3,
    Fault.EXTRA: 3,
    Fault.NO_ARRAYS: 3,
    Fault.NO_EXAMPLES: 3,
    Fault.NEGATIVE: 3,
}


@dataclass(frozen=True)
class LocalRun:
    """A run and what is done to it.

    Attributes
    ----------
    name : str
        Of the run.
    settings : Settings
        What kind of run it is.
    clients, messages : mapping of Fault to int
        How often each goes wrong.
    worker_kills : int
        Workers that are killed from outside, at any moment.
    server_kills : tuple of int
        Merges after which the server's process is killed, and goes on from its last
        checkpoint.
    nodes, workers : int
        Of the LocalGrid.
    seed : int
        Seed of the order of the faults.
    """

    name: str
    settings: Settings
    clients: Mapping[Fault, int]
    messages: Mapping[Fault, int]
    worker_kills: int = 0
    server_kills: tuple[int, ...] = ()
    nodes: int = 24
    workers: int = 10
    seed: int = 0


LOCAL_RUNS = (
    LocalRun(
        "local_wall",
        Settings("wall", rounds=16, timeout=20.0, deadline=1.0),
        {
            **_SPOILED,
            Fault.RAISES: 12,
            Fault.EXITS: 5,
            Fault.KILLED: 5,
            Fault.LATE: 6,
            Fault.HANGS: 3,
        },
        {
            Fault.DUPLICATE: 8,
            Fault.AGAIN: 8,
            Fault.NOT_SENT: 6,
            Fault.SWALLOWED: 3,
            Fault.NODE_LEAVES: 4,
        },
        worker_kills=6,
    ),
    LocalRun(
        "local_virtual",
        Settings("virtual", rounds=16, timeout=8.0, checkpoint_every=2),
        {**_SPOILED, Fault.RAISES: 8, Fault.EXITS: 3, Fault.KILLED: 3, Fault.HANGS: 1},
        {Fault.DUPLICATE: 12, Fault.AGAIN: 12, Fault.SWALLOWED: 2},
        server_kills=(30, 60, 100),
        workers=4,
        seed=1,
    ),
)


def run_local(run: LocalRun, folder: Path) -> Audit:
    """Run it, kill its processes, and audit what comes out.

    A run that fails, or does not end, is audited too, by what it has left.

    Parameters
    ----------
    run : LocalRun
        What to do.
    folder : Path
        Where its files go; made.
    """
    settings = run.settings
    ledger = server.prepare(folder, settings, run.clients, run.messages, run.seed)
    started, failure = time.perf_counter(), ""
    try:
        _break(run, folder, ledger)
    except RuntimeError as error:
        failure = str(error)
    seconds = time.perf_counter() - started
    return Audit.of(run.name, folder, settings.merges, seconds, failure)


def _break(run: LocalRun, folder: Path, ledger: Ledger) -> None:
    """Kill processes until the run has ended."""
    generator = np.random.default_rng(run.seed)
    moments: NDArray[np.float64] | None
    moments = np.cumsum(generator.uniform(0.2, 1.5, run.worker_kills))
    server_kills = deque(run.server_kills)
    begin = time.monotonic()
    process = _start(run, folder)
    # What happens to workers begins with the first task: they are all there then.
    worker_kills = deque[float]()
    try:
        while process.poll() is None:
            now = time.monotonic()
            if now > begin + _PATIENCE:
                raise RuntimeError(f"it did not end in {_PATIENCE:g} s")
            merged = server.merges_so_far(folder)
            if merged and moments is not None:
                worker_kills, moments = deque(now + moments), None
            if server_kills and merged >= server_kills[0]:
                server_kills.popleft()
                ledger.note("harness", fault=Fault.SERVER_KILLED)
                process.kill()
                process.wait()
                process = _start(run, folder)
            due = worker_kills and now > worker_kills[0]
            if due and _kill_worker(process, ledger, generator):
                worker_kills.popleft()
            time.sleep(_POLL)
    finally:
        process.kill()
        process.wait()
    if process.returncode:
        lines = (folder / "server.log").read_text().splitlines()
        last = lines[-1] if lines else "it printed nothing"
        raise RuntimeError(f"its server ended with {process.returncode}: {last}")


def _start(run: LocalRun, folder: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "benchmarks.chaos.local"]
    arguments = [str(folder), str(run.nodes), str(run.workers)]
    with (folder / "server.log").open("a") as log:
        return subprocess.Popen([*command, *arguments], stdout=log, stderr=log)


def _kill_worker(
    process: "subprocess.Popen[bytes]", ledger: Ledger, generator: np.random.Generator
) -> bool:
    """Kill one of those that the fork server of a process has forked, if any."""
    try:
        children = psutil.Process(process.pid).children()
        workers = [worker.pid for child in children for worker in child.children()]
        if not workers:
            return False
        os.kill(int(generator.choice(workers)), signal.SIGKILL)
    except (psutil.NoSuchProcess, ProcessLookupError):
        return False  # it has just ended by itself
    ledger.note("harness", fault=Fault.WORKER_KILLED)
    return True


def main() -> None:
    """Serve a run on LocalGrid."""
    folder, nodes, workers = sys.argv[1:]
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with LocalGrid(
        "benchmarks.chaos.client:app",
        num_nodes=int(nodes),
        workers=int(workers),
        run_config={
            "chaos-dir": folder,
            "late-seconds": _LATE_SECONDS,
            "hang-seconds": _HANG_SECONDS,
        },
    ) as grid:
        server.run(grid, Path(folder))


if __name__ == "__main__":
    main()
