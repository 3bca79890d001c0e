"""What clients, the grid and the harness say that they did: one line of JSON each.

Every process of a run appends to the same file, under a lock, before it does what it
writes down, so nobody who is killed leaves anything out.
"""

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from benchmarks.chaos.faults import Fault, Plan

__all__ = ["Ledger"]

_PLAN = "plan.json"
_LINES = "ledger.jsonl"
Entry = dict[str, Any]


class Ledger:
    """The book that a run's processes share.

    Parameters
    ----------
    folder : Path
        Where it lies, with the plan of the clients' faults.
    """

    def __init__(self, folder: Path) -> None:
        self._plan = folder / _PLAN
        self._lines = folder / _LINES

    @classmethod
    def open_new(cls, folder: Path, plan: Plan) -> "Ledger":
        """Begin a book in a folder, which is made."""
        folder.mkdir(parents=True)
        ledger = cls(folder)
        ledger._plan.write_text(plan.dumps())
        ledger._lines.touch()
        return ledger

    def begin_task(self, seed: int, partition: int) -> tuple[int, Fault | None]:
        """Note a task; return its number, from 0, and what is to go wrong with it.

        A task that is sent again, after a restart, is the one that it was.
        """
        with self._locked() as file:
            tasks = [t for t in map(json.loads, file) if t["event"] == "task"]
            numbers = {task["seed"]: task["number"] for task in tasks}
            number = numbers.get(seed, len(numbers))
            fault = Plan.loads(self._plan.read_text())[number]
            entry = {"number": number, "fault": fault, "partition": partition}
            _write(file, event="task", seed=seed, **entry)
        return number, fault

    def note(self, event: str, **details: object) -> None:
        """Note anything else."""
        with self._locked() as file:
            _write(file, event=event, **details)

    def entries(self, event: str) -> list[Entry]:
        """Return the lines of one kind, in order."""
        with self._locked() as file:
            lines = [json.loads(line) for line in file]
        return [line for line in lines if line["event"] == event]

    @contextmanager
    def _locked(self) -> Iterator[TextIO]:
        with self._lines.open("r+") as file:
            # Released with the file, also if this process is killed.
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file


def _write(file: TextIO, **entry: object) -> None:
    file.seek(0, 2)
    file.write(f"{json.dumps(entry)}\n")
