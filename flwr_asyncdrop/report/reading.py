"""Reading a history that may have been damaged."""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from flwr_asyncdrop.exceptions import AsyncDropError, DataError
from flwr_asyncdrop.observers.history_lines import Record
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.report.runlog import Point, RunLog
from flwr_asyncdrop.report.summary import Summary
from flwr_asyncdrop.storage.done import is_as_marked

_MOST = 2**63
_FIRST_LINE = b'{"event": "run"'  # its beginning
_LONGEST_LINE = 1 << 24


class LineOrder:
    """Tells whether lines are those of one run, each there once."""

    def __init__(self) -> None:
        self._updates = 0
        self._last = ""

    def check(self, record: Record) -> None:
        """Raise a ValueError if a line cannot stand behind those before it."""
        event = record["event"]
        if self._last == "end":
            raise ValueError(f"it has {event!r} behind its end: another run's")
        if event == "run" and self._last:
            raise ValueError(f"it has {event!r} behind {self._last!r}: another run's")
        self._last = event
        if event == "left-out":
            self._updates += record["updates"]
        elif event == "update":
            self._updates += 1
            if record["update"] != self._updates:
                number = record["update"]
                raise ValueError(f"its update {number} is number {self._updates}")


def _in_order(records: Iterable[Record]) -> Iterator[Record]:
    order = LineOrder()
    for record in records:
        order.check(record)
        yield record


def _check_points(points: Sequence[Point]) -> None:
    for point in points:
        counts = (point.update, point.num_bytes)
        if not all(isinstance(count, int) and 0 <= count < _MOST for count in counts):
            raise ValueError(f"an evaluation has the counts {counts}")
        if not 0 <= point.time < math.inf:
            raise ValueError(f"an evaluation is at {point.time} s")
    for before, after in pairwise(points):
        moments = [(p.time, p.update, p.num_bytes) for p in (before, after)]
        if any(later < sooner for sooner, later in zip(*moments, strict=True)):
            raise ValueError(
                f"an evaluation of {moments[1]} comes after one of {moments[0]}"
            )


def _check_units(units: Record) -> None:
    """Raise an error unless each rank has a count for each bin of each group."""
    ranks = len(units["ranks"])
    if (
        not units["groups"]
        or len(units["updates"]) != ranks
        or min(units["updates"]) < 1
    ):
        raise ValueError("its counts of units lack ranks, updates or groups")
    for group in units["groups"]:
        counts = np.array(group["counts"], dtype=np.int64)
        if counts.shape != (ranks, -(-group["size"] // units["bin"])):
            raise ValueError(f"its counts of units have the shape {counts.shape}")


def is_unwritten(path: Path) -> bool:
    """Return whether a history has nothing yet, or a part of its first line.

    So it is while a run begins, and for good if the run was killed then.
    """
    if not path.is_file():  # a pipe would wait
        return False
    try:
        with path.open("rb") as file:
            line = file.readline(_LONGEST_LINE)
    except OSError:
        return False
    begun = line[: len(_FIRST_LINE)]
    return not line.endswith(b"\n") and _FIRST_LINE.startswith(begun)


def read_if_begun(path: Path) -> RunLog | None:
    """Read a history as `read_log` does; None if there is nothing in it yet."""
    if is_unwritten(path) and is_as_marked(path.parent, path.name):
        return None
    return read_log(path)


def read_log(path: Path) -> RunLog:
    """Read a history; DataError if it is not what a run has written."""
    if not is_as_marked(path.parent, path.name):
        raise DataError(
            f"{path} was changed after its run had ended: put the run's own back, or "
            "do the run again"
        )
    try:
        log = RunLog.from_records(_in_order(read_history(path)), f"the history {path}")
        Summary(log).text()  # which looks at nearly all that reports need
        _check_points(log.curve.points if log.curve else ())
        if log.units is not None:
            _check_units(log.units)
    except AsyncDropError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as bad:
        raise DataError(
            f"the history {path} is damaged ({one_line(bad)}): do the run again"
        ) from bad
    return log
