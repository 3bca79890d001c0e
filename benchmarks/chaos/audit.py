"""What a broken run has come to, from four books that know nothing of each other.

The model itself (how often each task was merged), the clients' and the grid's ledger
(what was done, and what was handed over to the server), the server's history, and a
callback's books of orders.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from benchmarks.chaos.faults import SPOILERS, TALLY, Fault
from benchmarks.chaos.ledger import Ledger
from benchmarks.figures import Figure
from flwr_asyncdrop.fleet.faults import FaultPolicy
from flwr_asyncdrop.observers.history import read_history

__all__ = ["Audit", "figures", "table"]

_LATE_WEIGHT = FaultPolicy().late_weight
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Audit:
    """The outcome of one run.

    Attributes
    ----------
    name : str
        Which run it was.
    expected, merged : int
        Merges that the run was to make, and tasks that have left a mark in the model.
    faults : Counter of Fault
        How often each took place.
    healed : Counter of Fault
        Those of them whose task was merged none the less.
    lost : int
        Sound answers to tasks that were handed to the server in time, and are not in
        the model.
    twice : int
        Tasks that are in the model, or in the history, more than once.
    spoiled : int
        Tasks with a spoiled answer that are in the model.
    stuck : int
        Orders that vanished, and those that were out at the end though their time
        had long been up.
    non_finite : int
        Values in any version of the model that are no numbers.
    failures : dict of str to int
        What the server says went wrong, by kind.
    seconds : float
        How long it took.
    """

    name: str
    expected: int
    merged: int
    faults: Counter[Fault]
    healed: Counter[Fault]
    lost: int
    twice: int
    spoiled: int
    stuck: int
    non_finite: int
    failures: dict[str, int]
    seconds: float

    @property
    def survived(self) -> bool:
        """Whether the run ended with the right number of sound merges."""
        return self.merged == self.expected and not self.spoiled

    @classmethod
    def of(cls, name: str, folder: Path, expected: int, seconds: float) -> "Audit":
        """Audit a run that has ended.

        Parameters
        ----------
        name : str
            Which run it was.
        folder : Path
            Where it has left its files.
        expected : int
            Merges that it was to make.
        seconds : float
            How long it took.
        """
        ledger = Ledger(folder)
        tasks = {task["number"]: task for task in ledger.entries("task")}
        by_seed = {task["seed"]: number for number, task in tasks.items()}
        tally = load_file(folder / "model.safetensors")[TALLY]
        in_model = set(tally.nonzero().flatten().tolist())
        delivered = {by_seed.get(e["seed"]) for e in ledger.entries("delivered")}
        healthy = {n for n, task in tasks.items() if task["fault"] is None}
        pushes = {push["seed"]: push for push in ledger.entries("push")}
        done = [*tasks.values(), *pushes.values(), *ledger.entries("harness")]
        faults = [
            (Fault(entry["fault"]), by_seed.get(entry.get("seed")))
            for entry in done
            if entry["fault"]
        ]
        updates = [
            line
            for line in read_history(folder / "history.jsonl")
            if line["event"] == "update"
        ]
        books = json.loads((folder / "books.json").read_text())
        return cls(
            name=name,
            expected=expected,
            merged=len(in_model),
            faults=Counter(fault for fault, _ in faults),
            healed=Counter(fault for fault, number in faults if number in in_model),
            lost=len(healthy & delivered - in_model),
            twice=_merged_twice(tally, updates),
            spoiled=sum(tasks[n]["fault"] in SPOILERS for n in in_model & tasks.keys()),
            stuck=books["never_ended"] + books["forgotten"],
            non_finite=books["non_finite"] + int((~torch.isfinite(tally)).sum()),
            failures=books["failures"],
            seconds=seconds,
        )


def _merged_twice(tally: torch.Tensor, updates: Sequence[Mapping[str, Any]]) -> int:
    """Count the tasks that weigh more than one merge does, or are in two updates."""
    once = torch.ones_like(tally)
    once[[line["metrics"]["task"] for line in updates if line.get("late")]] = (
        _LATE_WEIGHT
    )
    in_model = (tally > once + _ROUNDING).nonzero().flatten().tolist()
    times = Counter(line["metrics"]["task"] for line in updates)
    return len({*in_model, *(task for task, count in times.items() if count > 1)})


def figures(audits: Sequence[Audit]) -> list[Figure]:
    """Return the figures of all runs together, with what they should be."""
    return [
        Figure(
            "faults_injected",
            sum(audit.faults.total() for audit in audits),
            200,
            at_least=True,
        ),
        Figure("survived", all(audit.survived for audit in audits), 1, at_least=True),
        Figure("updates_lost", sum(audit.lost for audit in audits), 0),
        Figure("merged_twice", sum(audit.twice for audit in audits), 0),
        Figure("stuck_slots", sum(audit.stuck for audit in audits), 0),
        Figure("non_finite", sum(audit.non_finite for audit in audits), 0),
        *(Figure(f"{audit.name}_s", audit.seconds) for audit in audits),
    ]


def table(audits: Sequence[Audit]) -> str:
    """Return what happened in each run, by kind of fault."""
    names = "".join(f"{audit.name:>16}" for audit in audits)
    lines = [f"{'fault (of these, tasks merged)':<34}{names}"]
    for fault in Fault:
        cells = [
            f"{audit.faults[fault]} ({audit.healed[fault]})"
            if audit.faults[fault]
            else ""
            for audit in audits
        ]
        if any(cells):
            lines.append(f"{fault:<34}" + "".join(f"{cell:>16}" for cell in cells))
    merges = "".join(f"{f'{a.merged} of {a.expected}':>16}" for a in audits)
    lines.append(f"{'merges':<34}{merges}")
    lost = "".join(f"{audit.lost:>16}" for audit in audits)
    lines.append(f"{'sound answers lost':<34}{lost}")
    for audit in audits:
        counts = ", ".join(f"{kind} {n}" for kind, n in sorted(audit.failures.items()))
        lines.append(f"lost tasks of {audit.name}, as the server has it: {counts}")
    return "\n".join(lines)
