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
_MORE_COUNTS = ("update", "round", "staleness", "bytes_down", "bytes_up")


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
    """Tasks that were merged; the fields are those of `HistoryWriter`.

    `queued` is 0 where the history says nothing; `late` counts the late ones.
    """

    update: Ints
    round: Ints
    staleness: Ints
    bytes_down: Ints
    bytes_up: Ints
    queued: Ints
    late: int


class _Columns:
    """Columns that grow; a number that is no float or int raises a TypeError."""

    def __init__(self, counts: tuple[str, ...]) -> None:
        self._columns = {name: array("d") for name in _TIMES} | {
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
        self._columns = _Columns(_COUNTS)

    def add(self, record: Mapping[str, Any]) -> None:
        """Take the numbers of a record."""
        self._columns.add(record)

    def tasks(self) -> Tasks:
        """Return all of them."""
        return Tasks(**self._columns.arrays)


class MergedTasks:
    """Takes ``update`` records one by one."""

    def __init__(self) -> None:
        self._columns = _Columns((*_COUNTS, *_MORE_COUNTS))
        self._queued, self._late = array("q"), 0

    def add(self, record: Mapping[str, Any]) -> None:
        """Take the numbers of a record."""
        self._columns.add(record)
        self._queued.append(record.get("queued", 0))
        self._late += "late" in record

    def tasks(self) -> Updates:
        """Return all of them."""
        queued = np.array(self._queued)
        return Updates(**self._columns.arrays, queued=queued, late=self._late)
