"""The tasks of a run, a column a field: 100,000 of them take 8 MB."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_TIMES = ("time", "dispatched_at")
_COUNTS = ("device", "rank")


@dataclass(frozen=True)
class Tasks:
    """Tasks that were lost, in the file's order; each column has shape (tasks,).

    Times are seconds on the run's clock, `rank` is the speed rank.
    """

    time: Floats
    dispatched_at: Floats
    device: Ints
    rank: Ints

    def __len__(self) -> int:
        return len(self.time)


@dataclass(frozen=True)
class Updates(Tasks):
    """Tasks that were merged."""

    staleness: Ints


@dataclass(frozen=True)
class Steps:
    """What came line by line, with what was left out: each column has shape (lines,).

    A line of a thinned history may stand for many `updates`, up to its `time`.
    """

    time: Floats
    updates: Ints
    bytes_down: Ints
    bytes_up: Ints


class _Columns:
    """Columns that grow; a number that is no float or int raises a TypeError."""

    def __init__(self, times: tuple[str, ...], counts: tuple[str, ...]) -> None:
        self._columns = {name: array("d") for name in times} | {
            name: array("q") for name in counts
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Take a record's numbers; KeyError if it lacks one."""
        for name, column in self._columns.items():
            column.append(record[name])

    @property
    def arrays(self) -> dict[str, Any]:
        """The columns as arrays."""
        return {name: np.array(column) for name, column in self._columns.items()}


class LostTasks:
    """Takes ``failure`` records one by one."""

    def __init__(self) -> None:
        self._columns = _Columns(_TIMES, _COUNTS)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take the numbers of a record."""
        self._columns.add(record)

    def tasks(self) -> Tasks:
        """Return all of them."""
        return Tasks(**self._columns.arrays)


class MergedTasks:
    """Takes ``update`` records one by one."""

    def __init__(self) -> None:
        self._columns = _Columns(_TIMES, (*_COUNTS, "staleness"))

    def add(self, record: Mapping[str, Any]) -> None:
        """Take the numbers of a record."""
        self._columns.add(record)

    def tasks(self) -> Updates:
        """Return all of them."""
        return Updates(**self._columns.arrays)


class StepsSoFar:
    """Takes ``update`` and ``left-out`` records one by one."""

    def __init__(self) -> None:
        self._columns = _Columns(("time",), ("updates", "bytes_down", "bytes_up"))

    def add(self, record: Mapping[str, Any], updates: int) -> None:
        """Take a record that stands for so many updates."""
        self._columns.add({**record, "updates": updates})

    def steps(self) -> Steps:
        """Return all of them."""
        return Steps(**self._columns.arrays)
