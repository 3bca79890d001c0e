"""Broken runs on a real SuperLink with real SuperNodes, all of which are killed."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.chaos import server
from benchmarks.chaos.audit import Audit
from benchmarks.chaos.deployment import Deployment
from benchmarks.chaos.faults import Fault
from benchmarks.chaos.ledger import Ledger
from benchmarks.chaos.server import Settings

__all__ = ["FLEET_RUNS", "FleetRun", "run_fleet"]

_ROOT = Path(__file__).parents[2]
_APP = Path(__file__).with_name("fleet_app")
_CRASHES = (Fault.EXITS, Fault.KILLED)
_LATE_SECONDS = 35.0  # the deadline of a task that should take 10 s, and a bit
_HANG_SECONDS = 90.0
_SECONDS_DOWN = 3.0
_PATIENCE = 900.0
_SECONDS_TO_START = 240.0
_SECONDS_TO_END = 5.0  # a ServerApp that has ended may still be writing to the disk
_POLL = 0.25
_POLL_FOR_PUSH = 0.02


@dataclass(frozen=True)
class FleetRun:
    """A run and what is done to it.

    Attributes
    ----------
    name : str
        Of the run.
    settings : Settings
        What kind of run it is.
    clients, messages : mapping of Fault to int
        How often each goes wrong.
    node_kills, superlink_kills : tuple of int
        Merges after which a SuperNode, or the SuperLink, is killed and started again.
    kills_in_push : tuple of int
        Merges after which the SuperLink is killed while a task is being sent.
    survives_superlink : bool
        Whether the ServerApp outlives its SuperLink. Else it dies with it, and is run
        again.
    nodes : int
        SuperNodes.
    seed : int
        Seed of the order of the faults.
    """

    name: str
    settings: Settings
    clients: Mapping[Fault, int] = field(default_factory=dict)
    messages: Mapping[Fault, int] = field(default_factory=dict)
    node_kills: tuple[int, ...] = ()
    superlink_kills: tuple[int, ...] = ()
    kills_in_push: tuple[int, ...] = ()
    survives_superlink: bool = True
    nodes: int = 6
    seed: int = 0


FLEET_RUNS = (
    FleetRun(
        "fleet",
        Settings("wall", rounds=6, in_flight=5, timeout=60.0),
        {
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
        },
        {
            Fault.DUPLICATE: 3,
            Fault.AGAIN: 3,
            Fault.NOT_SENT: 2,
            Fault.SWALLOWED: 1,
            Fault.NODE_LEAVES: 1,
        },
        node_kills=(4, 16),
        superlink_kills=(8, 20),
    ),
    FleetRun(
        "fleet_resumed",
        Settings("wall", rounds=4, in_flight=3, timeout=60.0, checkpoint_every=1),
        {Fault.RAISES: 2, Fault.NAN: 1},
        superlink_kills=(5,),
        survives_superlink=False,
        nodes=4,
    ),
)


def run_fleet(run: FleetRun, folder: Path) -> Audit:
    """Run it, break what can be broken, and audit what comes out.

    A run that fails, or does not end, is audited too, by what it has left.

    Parameters
    ----------
    run : FleetRun
        What to do.
    folder : Path
        Where the files of the run and of Flower go; made.
    """
    settings = run.settings
    ledger = server.prepare(folder, settings, run.clients, run.messages, run.seed)
    home = folder / "flower"
    home.mkdir()
    started, failure = time.perf_counter(), ""
    try:
        with Deployment(
            home,
            run.nodes,
            survives_superlink=run.survives_superlink,
            PYTHONPATH=str(_ROOT),
        ) as deployment:
            _break(run, deployment, ledger, folder)
    except RuntimeError as error:
        failure = str(error)
    seconds = time.perf_counter() - started
    return Audit.of(run.name, folder, settings.merges, seconds, failure)


def _break(run: FleetRun, deployment: Deployment, ledger: Ledger, folder: Path) -> None:
    """Start it, and kill processes until it has ended."""
    deadline = time.monotonic() + _PATIENCE
    node_kills, link_kills = deque(run.node_kills), deque(run.superlink_kills)
    kills_in_push = deque(run.kills_in_push)
    crashes = _Crashes(ledger)
    victims = iter(range(run.nodes))
    _start(deployment, folder)
    ends_by = time.monotonic() + _SECONDS_TO_START
    while not (folder / "model.safetensors").exists():
        now = time.monotonic()
        if deployment.is_serving():
            ends_by = now + _SECONDS_TO_END
        elif now > ends_by:
            raise RuntimeError(f"its ServerApp has ended: {deployment.last_error()}")
        if now > deadline:
            raise RuntimeError(f"it did not end in {_PATIENCE:g} s")
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
            if not run.survives_superlink:
                _start(deployment, folder)
                ends_by = time.monotonic() + _SECONDS_TO_START
        if kills_in_push and merged >= kills_in_push[0] and _is_pushing(ledger):
            kills_in_push.popleft()
            ledger.note("harness", fault=Fault.SUPERLINK_KILLED_IN_PUSH)
            deployment.restart_superlink(_SECONDS_DOWN)
        time.sleep(_POLL_FOR_PUSH if kills_in_push else _POLL)


def _is_pushing(ledger: Ledger) -> bool:
    """Return whether a task is on its way, if the server is not killed itself."""
    begun, done = (len(ledger.entries(event)) for event in ("push", "pushed"))
    return begun > done


def _start(deployment: Deployment, folder: Path) -> None:
    settings = {
        "chaos-dir": str(folder),
        "late-seconds": _LATE_SECONDS,
        "hang-seconds": _HANG_SECONDS,
    }
    deployment.run(_APP, **settings)


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
