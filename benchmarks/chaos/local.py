"""Broken runs on LocalGrid: clients, messages, nodes and worker processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.chaos import server
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.faults import Fault, Plan
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.server import Settings
from flwr_asyncdrop import LocalGrid

__all__ = ["LOCAL_RUNS", "LocalRun", "run_local"]

_NODES = 24
_WORKERS = 6
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
    kills : int
        Workers that are killed from outside, at any moment.
    seed : int
        Seed of the order of the faults.
    """

    name: str
    settings: Settings
    clients: Mapping[Fault, int]
    messages: Mapping[Fault, int]
    kills: int = 0
    seed: int = 0


LOCAL_RUNS = (
    LocalRun(
        "local_wall",
        Settings("wall", rounds=16, timeout=2.0),
        {
            **_SPOILED,
            Fault.RAISES: 12,
            Fault.EXITS: 5,
            Fault.KILLED: 5,
            Fault.LATE: 8,
            Fault.HANGS: 4,
        },
        {
            Fault.DUPLICATE: 8,
            Fault.AGAIN: 8,
            Fault.NOT_SENT: 6,
            Fault.SWALLOWED: 4,
            Fault.NODE_LEAVES: 4,
        },
        kills=6,
    ),
    LocalRun(
        "local_virtual",
        Settings("virtual", rounds=16, timeout=2.0),
        {**_SPOILED, Fault.RAISES: 8, Fault.EXITS: 3, Fault.KILLED: 3, Fault.HANGS: 2},
        {Fault.DUPLICATE: 8, Fault.AGAIN: 8, Fault.NOT_SENT: 4, Fault.SWALLOWED: 2},
        kills=4,
        seed=1,
    ),
)


def run_local(
    run: LocalRun, folder: Path, *, nodes: int = _NODES, workers: int = _WORKERS
) -> Audit:
    """Run it, kill its workers, and audit what comes out.

    Parameters
    ----------
    run : LocalRun
        What to do.
    folder : Path
        Where its files go; made.
    nodes, workers : int
        Of the LocalGrid.
    """
    merges = run.settings.merges
    # All tasks without a fault but those that end the run are merged.
    fine = merges - run.settings.in_flight
    clients = Plan.draw(run.clients, fine, run.seed)
    messages = Plan.draw(run.messages, fine, run.seed + 1)
    ledger = server.prepare(folder, run.settings, clients, messages)
    config = {"chaos-dir": str(folder), "late-seconds": 3.0, "hang-seconds": 8.0}
    started = time.perf_counter()
    with (
        LocalGrid(
            "benchmarks.chaos.client:app",
            num_nodes=nodes,
            workers=workers,
            run_config=config,
        ) as grid,
        _killing_workers(ledger, run.kills, run.seed),
    ):
        server.run(grid, folder)
    return Audit.of(run.name, folder, merges, time.perf_counter() - started)


@contextmanager
def _killing_workers(ledger: Ledger, kills: int, seed: int) -> Iterator[None]:
    """Kill workers of the LocalGrid in this process, one a second or so."""
    generator = np.random.default_rng(seed)
    ended = threading.Event()

    def kill() -> None:
        for _ in range(kills):
            if ended.wait(generator.uniform(0.2, 1.0)):
                return
            victim = generator.choice(_worker_ids())
            ledger.note("harness", fault=Fault.WORKER_KILLED)
            os.kill(victim, signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _worker_ids() -> list[int]:
    """Return the processes that the fork server of this process has forked."""
    children = psutil.Process().children()
    return [worker.pid for child in children for worker in child.children()]
