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
from flwr_asyncdrop.observers.history_reading import read_history

__all__ = ["Audit", "figures", "summed", "table"]

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
    failure : str
        Why it did not come to its end; empty if it did. What the model and the books
        would have said is then taken from the history, or counts as 0.
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
    failure: str = ""

    @property
    def survived(self) -> bool:
        """Whether the run ended with the right number of sound merges."""
        return self.merged == self.expected and not (self.spoiled or self.failure)

    @classmethod
    def of(
        cls, name: str, folder: Path, expected: int, seconds: float, failure: str = ""
    ) -> "Audit":
        """Audit a run that has ended, however it did.

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
        failure : str
            Why it did not come to its end.
        """
        ledger = Ledger(folder)
        tasks = {task["number"]: task for task in ledger.entries("task")}
        by_seed = {task["seed"]: number for number, task in tasks.items()}
        updates = _updates(folder / "history.jsonl")
        tally = _tally(folder / "model.safetensors", updates)
        in_model = set(tally.nonzero().flatten().tolist())
        delivered = [by_seed.get(e["seed"]) for e in ledger.entries("delivered")]
        if len(in_model) == expected:  # what came behind the last one was not needed
            while delivered and delivered[-1] not in in_model:
                del delivered[-1]
        healthy = {n for n, task in tasks.items() if task["fault"] is None}
        pushes = {push["seed"]: push for push in ledger.entries("push")}
        done = [*tasks.values(), *pushes.values(), *ledger.entries("harness")]
        faults = [
            (Fault(entry["fault"]), by_seed.get(entry.get("seed")))
            for entry in done
            if entry["fault"]
        ]
        books = _books(folder / "books.json")
        return cls(
            name=name,
            expected=expected,
            merged=len(in_model),
            faults=Counter(fault for fault, _ in faults),
            healed=Counter(fault for fault, number in faults if number in in_model),
            lost=len(healthy & set(delivered) - in_model),
            twice=_merged_twice(tally, updates),
            spoiled=sum(tasks[n]["fault"] in SPOILERS for n in in_model & tasks.keys()),
            stuck=books["never_ended"] + books["forgotten"],
            non_finite=books["non_finite"] + int((~torch.isfinite(tally)).sum()),
            failures=books["failures"],
            seconds=seconds,
            failure=failure,
        )


def _updates(path: Path) -> list[Mapping[str, Any]]:
    """Return the updates of a history, none if there is no history."""
    lines = read_history(path) if path.exists() else ()
    return [line for line in lines if line["event"] == "update"]


def _tally(path: Path, updates: Sequence[Mapping[str, Any]]) -> torch.Tensor:
    """Return how often each task is in the model, or else in the history."""
    if path.exists():
        return load_file(path)[TALLY]
    tasks = [int(line["metrics"]["task"]) for line in updates]
    return torch.bincount(torch.tensor(tasks, dtype=torch.int64), minlength=1).float()


def _books(path: Path) -> dict[str, Any]:
    """Return what the server's books say, or nothing at all."""
    if path.exists():
        books: dict[str, Any] = json.loads(path.read_text())
        return books
    return {"failures": {}, "never_ended": 0, "forgotten": 0, "non_finite": 0}


def _merged_twice(tally: torch.Tensor, updates: Sequence[Mapping[str, Any]]) -> int:
    """Count the tasks that weigh more than one merge does, or are in two updates."""
    once = torch.ones_like(tally)
    once[[line["metrics"]["task"] for line in updates if line.get("late")]] = (
        _LATE_WEIGHT
    )
    in_model = (tally > once + _ROUNDING).nonzero().flatten().tolist()
    times = Counter(line["metrics"]["task"] for line in updates)
    return len({*in_model, *(task for task, count in times.items() if count > 1)})


def figures(audits: Sequence[Audit], planned: int) -> list[Figure]:
    """Return the figures of all runs together, with what they should be.

    Parameters
    ----------
    audits : sequence of Audit
        Of the runs.
    planned : int
        Faults that are to take place in them, at least.
    """
    return [
        Figure(
            "faults_injected",
            sum(audit.faults.total() for audit in audits),
            planned,
            at_least=True,
        ),
        Figure(
            "runs_survived",
            sum(audit.survived for audit in audits),
            len(audits),
            at_least=True,
        ),
        Figure("updates_lost", sum(audit.lost for audit in audits), 0),
        Figure("merged_twice", sum(audit.twice for audit in audits), 0),
        Figure("stuck_slots", sum(audit.stuck for audit in audits), 0),
        Figure("non_finite", sum(audit.non_finite for audit in audits), 0),
        *(Figure(f"{audit.name}_s", audit.seconds) for audit in summed(audits)),
    ]


def summed(audits: Sequence[Audit]) -> list[Audit]:
    """Add up the runs of the same name; their seconds are the mean."""
    sums = []
    for name in dict.fromkeys(audit.name for audit in audits):
        same = [audit for audit in audits if audit.name == name]
        failures: Counter[str] = Counter()
        for audit in same:
            failures.update(audit.failures)
        sums.append(
            Audit(
                name=name,
                expected=sum(audit.expected for audit in same),
                merged=sum(audit.merged for audit in same),
                faults=sum((audit.faults for audit in same), Counter()),
                healed=sum((audit.healed for audit in same), Counter()),
                lost=sum(audit.lost for audit in same),
                twice=sum(audit.twice for audit in same),
                spoiled=sum(audit.spoiled for audit in same),
                stuck=sum(audit.stuck for audit in same),
                non_finite=sum(audit.non_finite for audit in same),
                failures=dict(failures),
                seconds=sum(audit.seconds for audit in same) / len(same),
                failure="; ".join(audit.failure for audit in same if audit.failure),
            )
        )
    return sums


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
        if audit.failure:
            lines.append(f"{audit.name} FAILED: {audit.failure}")
        counts = ", ".join(f"{kind} {n}" for kind, n in sorted(audit.failures.items()))
        lines.append(f"lost tasks of {audit.name}, as the server has it: {counts}")
    return "\n".join(lines)
