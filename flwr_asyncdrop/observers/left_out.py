"""What a history leaves out between the lines that it keeps: sums instead of lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain


@dataclass
class LeftOut:
    """Sums of update and failure lines.

    `round` and `time` are the greatest; `staleness`, `queued` and the bytes are sums,
    `most_staleness` is a maximum, `late` counts updates, `ranks` the updates by speed
    rank, and `failures` the lost tasks by kind. `work` has the sum of the shares of
    local steps by speed rank, and nothing without a work policy.
    """

    updates: int = 0
    round: int = 0
    time: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    staleness: int = 0
    most_staleness: int = 0
    queued: int = 0
    late: int = 0
    ranks: dict[int, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    work: dict[int, float] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.updates or self.failures)

    def add_update(self, line: Mapping[str, Any]) -> None:
        """Count an ``update`` line."""
        self.updates += 1
        self.round = max(self.round, line["round"])
        self.time = max(self.time, float(line["time"]))
        self.bytes_down += line["bytes_down"]
        self.bytes_up += line["bytes_up"]
        self.staleness += line["staleness"]
        self.most_staleness = max(self.most_staleness, line["staleness"])
        self.queued += line.get("queued", 0)
        self.late += "late" in line
        _count(self.ranks, {int(line["rank"]): 1})
        if "work" in line:
            _count(self.work, {int(line["rank"]): float(line["work"])})

    def add_failure(self, line: Mapping[str, Any]) -> None:
        """Count a ``failure`` line."""
        self.time = max(self.time, float(line["time"]))
        _count(self.failures, {line["kind"]: 1})

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the sums of a ``left-out`` line."""
        for name in ("updates", "bytes_down", "bytes_up", "staleness", "queued"):
            setattr(self, name, getattr(self, name) + line[name])
        self.late += line["late"]
        for name in ("round", "time", "most_staleness"):
            setattr(self, name, max(getattr(self, name), line[name]))
        _count(self.ranks, dict(line["ranks"]))
        _count(self.failures, line["failures"])
        _count(self.work, dict(line.get("work", ())))

    def line(self) -> dict[str, Any]:
        """Return the ``left-out`` line."""
        values = {**vars(self), "ranks": _pairs(self.ranks), "work": _pairs(self.work)}
        if not self.work:
            del values["work"]
        return {"event": "left-out", **values}

    def state_dict(self) -> StateDict:
        """Return the sums."""
        state: StateDict = to_plain(self)
        return state

    @classmethod
    def from_state(cls, state: StateDict) -> Self:
        """Return the sums that were saved."""
        # Versions before this one had no work.
        found: Self = from_plain(cls, {"work": {}, **state})
        return found


def _pairs(by_rank: Mapping[int, float]) -> list[list[float]]:
    return sorted(map(list, by_rank.items()))


def _count(counts: dict[Any, Any], more: Mapping[Any, float]) -> None:
    for key, number in more.items():
        counts[key] = counts.get(key, 0) + number
