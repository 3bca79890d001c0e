"""How far the writing of a history is."""

from dataclasses import dataclass

from flwr_asyncdrop.observers.history.reading import Record
from flwr_asyncdrop.observers.unit_counts import UnitCountsMemory


@dataclass(frozen=True)
class Place:
    """Where the line of an evaluation under way will stand, and what is known."""

    source: str
    round: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class HistoryMemory:
    """How far `HistoryWriter` is, for checkpoints.

    Attributes
    ----------
    num_bytes : int
        Length of the file.
    seconds : float
        Real seconds since the start of the run.
    lines : list of (record or None, place or None)
        What waits for an evaluation; one of the two is there.
    units : UnitCountsMemory
        Which units were trained.
    """

    num_bytes: int
    seconds: float
    lines: list[tuple[Record | None, Place | None]]
    units: UnitCountsMemory
