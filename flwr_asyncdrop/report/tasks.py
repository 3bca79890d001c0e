"""The tasks of a run, a column a field: 100,000 of them take 8 MB."""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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


T = TypeVar("T", bound=Tasks | Steps)


class Columns(Generic[T]):
    """The columns of a table, which grow record by record.

    Parameters
    ----------
    kind : type
        `Tasks`, `Updates` or `Steps`: a field is a column, and the key of a record.
    """

    def __init__(self, kind: type[T]) -> None:
        self._kind = kind
        self._columns = {
            entry.name: array("d" if entry.type is Floats else "q")
            for entry in fields(kind)
        }

    def add(self, record: Mapping[str, Any]) -> None:
        """Take a record's numbers: KeyError without one, TypeError if it is none."""
        for name, column in self._columns.items():
            column.append(record[name])

    def table(self) -> T:
        """Return all of them."""
        columns = {name: np.array(column) for name, column in self._columns.items()}
        return self._kind(**columns)
