"""The server of a run that is broken on purpose: the strategy as users have it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save_file

from benchmarks.chaos.books import Books
from benchmarks.chaos.faults import TALLY, Fault, Plan
from benchmarks.chaos.grid import ChaoticGrid
from benchmarks.chaos.ledger import Ledger
from flwr_asyncdrop import FedBuff, speed_levels, wire
from flwr_asyncdrop.checkpoint import Checkpointer
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.observers.history import HistoryWriter

__all__ = ["Settings", "app", "merges_so_far", "prepare", "run"]

_MOST_TASKS = 2048
_FLOATS_PER_MEGABYTE = 250_000


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes
    ----------
    clock : {"wall", "virtual"}
        Which clock it goes by.
    rounds, in_flight : int
        Their product is the number of merges.
    timeout : float
        Real seconds after which a task without an answer is given up.
    deadline : float
        Times its expected duration after which a task is overdue.
    checkpoint_every : int
        Rounds from one checkpoint to the next; 0 for none.
    ballast : int
        Megabytes that the model has beside its tally, so that a push takes a while.
    seed : int
        Seed of the run.
    """

    clock: Literal["wall", "virtual"] = "wall"
    rounds: int = 10
    in_flight: int = 8
    timeout: float = 20.0
    deadline: float = 3.0
    checkpoint_every: int = 0
    ballast: int = 0
    seed: int = 0

    @property
    def merges(self) -> int:
        """How many updates the run is to merge."""
        return self.rounds * self.in_flight


app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the folder of the run says."""
    run(grid, Path(str(context.run_config["chaos-dir"])))


def run(grid: Grid, folder: Path) -> None:
    """Run on a grid that goes wrong; leave history, books and model in the folder.

    If there is a checkpoint in it, the run goes on from there. Every task's change is
    added up with weight 1, so that the model is the count of the merges.

    Parameters
    ----------
    grid : Grid
        The way to the clients.
    folder : Path
        Where `prepare` has put the ledger, the plans and the settings.
    """
    settings = Settings(**json.loads((folder / "settings.json").read_text()))
    plan = Plan.loads((folder / "grid.json").read_text())
    books = Books(folder / "books.json")
    strategy = FedBuff(
        in_flight=settings.in_flight,
        fraction_evaluate=0.0,
        fleet=speed_levels if settings.clock == "virtual" else None,
        seed=settings.seed,
        buffer_size=1,
        weighting="constant",
        min_available_nodes=settings.in_flight,
        faults=FaultPolicy(deadline=settings.deadline),
        checkpointer=_checkpointer(settings, folder),
        # One that was killed before its first checkpoint begins again.
        callbacks=[HistoryWriter(folder / "history.jsonl", overwrite=True), books],
    )
    ballast = torch.rand(settings.ballast * _FLOATS_PER_MEGABYTE)
    result = strategy.start(
        ChaoticGrid(grid, plan, Ledger(folder)),
        wire.to_record({TALLY: torch.zeros(_MOST_TASKS), "ballast": ballast}),
        num_rounds=settings.rounds,
        timeout=settings.timeout,
    )
    save_file(wire.from_record(result.arrays), folder / "model.safetensors")


def _checkpointer(settings: Settings, folder: Path) -> Checkpointer | None:
    if not settings.checkpoint_every:
        return None
    begun = (folder / "checkpoints").exists()
    return Checkpointer(
        folder, resume=folder if begun else None, every=settings.checkpoint_every
    )


def merges_so_far(folder: Path) -> int:
    """Return how many updates a run has merged up to now, as its history has it."""
    path = folder / "history.jsonl"
    return path.read_text().count('"event": "update"') if path.exists() else 0


def prepare(
    folder: Path,
    settings: Settings,
    clients: Mapping[Fault, int],
    messages: Mapping[Fault, int],
    seed: int,
) -> Ledger:
    """Draw what goes wrong, and put what a run needs into a new folder.

    Parameters
    ----------
    folder : Path
        Made.
    settings : Settings
        What kind of run it is.
    clients, messages : mapping of Fault to int
        How often each goes wrong with tasks on clients, and with messages on their way.
    seed : int
        Seed of the order of the faults.
    """
    # Every task without a fault is merged, so the run cannot end before its faults.
    fine = settings.merges - settings.in_flight
    ledger = Ledger.open_new(folder, Plan.draw(clients, fine, seed))
    broken = Plan.draw(messages, fine, seed + 1)
    (folder / "grid.json").write_text(broken.dumps())
    (folder / "settings.json").write_text(json.dumps(asdict(settings)))
    return ledger
