"""What a run came to, in a few lines of text."""

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from flwr_asyncdrop.readable import readable_bytes
from flwr_asyncdrop.report.runlog import Point, RunLog, column

_WIDTH = 80
_MOST_LINES = 4
_ENDINGS = {
    "timeout": ": no device was left to train",
    "failures": ": in the end every task failed",
}


@dataclass(frozen=True)
class Summary:
    """The figures of a run.

    Attributes
    ----------
    devices, in_flight : int
        Size of the fleet, and most tasks in flight.
    updates, rounds, late : int
        Replies merged, rounds begun, and updates that came after their deadlines.
    time, wall_seconds : float
        Seconds on the run's clock, and real ones.
    metric, final, best : str, Point, Point
        The headline metric, its last and its best value.
    bytes_down, bytes_up, bytes_full : int
        Bytes sent and received, lost tasks included; and those of the merged tasks
        had they trained the full model, of which `share_saved` was not sent.
    mean_staleness, max_staleness, mean_queued : float
        Staleness in versions, and what of it came while a task waited on its device.
    updates_by_rank, failures : mapping
        Updates merged of each speed rank, 0 the fastest; tasks lost, by kind.
    duplicates : int
        Replies that came twice, and were merged once.
    updates_per_second : float
        Updates per real second.
    complete, ended : bool, str
        Whether the run did all its rounds; why not, as `RunState` has it.

    What the history does not tell is None, or "" where it is a text.
    """

    algorithm: str
    devices: int
    in_flight: int | None
    updates: int
    rounds: int
    time: float
    wall_seconds: float
    metric: str | None
    final: Point | None
    best: Point | None
    bytes_down: int
    bytes_up: int
    bytes_full: int
    share_saved: float | None
    mean_staleness: float | None
    max_staleness: int | None
    mean_queued: float
    updates_by_rank: Mapping[int, int]
    late: int
    failures: Mapping[str, int]
    duplicates: int
    updates_per_second: float | None
    complete: bool
    ended: str

    def text(self) -> str:
        """Return an aligned plain-text table, at most 20 lines of 80 columns."""
        rows = list(self._rows())
        width = max(len(label) for label, _ in rows) + 2
        return "\n".join(_wrapped(label.ljust(width), value) for label, value in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        yield "algorithm", self.algorithm
        slots = "" if self.in_flight is None else f", {self.in_flight:,} in flight"
        yield "fleet", f"{self.devices:,} devices{slots}"
        rate = self.updates_per_second
        speed = "" if rate is None else f", {rate:,.1f} per real second"
        yield "updates", f"{self.updates:,} in {self.rounds:,} rounds{speed}"
        yield "time", f"{self.time:,.1f} s, {self.wall_seconds:,.1f} s real"
        if self.metric is None or self.final is None or self.best is None:
            yield "accuracy", "not evaluated"
        else:
            yield f"final {self.metric}", _described(self.final)
            yield f"best {self.metric}", _described(self.best)
        down, up = readable_bytes(self.bytes_down), readable_bytes(self.bytes_up)
        yield "bytes", f"{down} down, {up} up"
        if self.share_saved is not None:
            full = readable_bytes(self.bytes_full)
            yield "full models", f"{full} for the same updates: {self._saved()}"
        if self.mean_staleness is not None:
            queued = self.mean_queued
            share = f"; {queued:.1f} of it in queues" if queued else ""
            yield (
                "staleness",
                f"mean {self.mean_staleness:.1f}, max {self.max_staleness} versions"
                f"{share}",
            )
        if self.updates_by_rank:
            counts = " ".join(f"{n:,}" for n in self.updates_by_rank.values())
            yield "by rank", f"{counts} updates, fastest first"
        if self.late:
            yield "late", f"{self.late:,} updates came after their deadlines"
        lost = ", ".join(f"{n:,} {kind}" for kind, n in self.failures.items())
        yield "tasks lost", lost or "none"
        if self.duplicates:
            yield "duplicates", f"{self.duplicates:,} replies came twice, merged once"
        if not self.complete:
            why = _ENDINGS.get(self.ended, "")
            yield "cut off", f"the run did not do all its rounds{why}"

    def _saved(self) -> str:
        share = self.share_saved or 0.0
        return f"{share:.1%} saved" if share >= 0 else f"{-share:.1%} more sent"


def summarise(records: Iterable[dict[str, Any]]) -> Summary:
    """Summarise a run.

    Parameters
    ----------
    records : iterable of dict
        The lines of its history, e.g. of `read_history`; all but the first may be
        missing.

    Raises
    ------
    DataError
        If the first line is missing.
    """
    log = RunLog.from_records(records)
    updates, curve, end = log.updates, log.curve, log.end or {}
    staleness = column(updates, "staleness")
    by_rank = Counter(int(line["rank"]) for line in updates)
    down, up = (int(column(updates, f"bytes_{way}").sum()) for way in ("down", "up"))
    return Summary(
        algorithm=log.fact("algorithm") or "unknown",
        devices=log.devices,
        in_flight=log.fact("in_flight"),
        updates=len(updates),
        rounds=max((line["round"] for line in updates), default=0),
        time=log.time,
        wall_seconds=log.wall_seconds,
        metric=curve.metric.name if curve else None,
        final=curve.final if curve else None,
        best=curve.best if curve else None,
        bytes_down=end.get("bytes_down", down),
        bytes_up=end.get("bytes_up", up),
        bytes_full=log.bytes_of_full_models,
        share_saved=log.share_saved,
        mean_staleness=float(staleness.mean()) if updates else None,
        max_staleness=int(staleness.max()) if updates else None,
        mean_queued=sum(line.get("queued", 0) for line in updates)
        / max(len(updates), 1),
        updates_by_rank=dict(sorted(by_rank.items())),
        late=sum("late" in line for line in updates),
        failures=end.get("failures", Counter(line["kind"] for line in log.failures)),
        duplicates=end.get("duplicates", 0),
        updates_per_second=len(updates) / log.wall_seconds
        if log.wall_seconds > 0
        else None,
        complete=log.complete,
        ended=end.get("ended", ""),
    )


def _described(point: Point) -> str:
    return f"{point.value:.4f} at update {point.update:,}, {point.time:,.1f} s"


def _wrapped(label: str, value: str) -> str:
    return textwrap.fill(
        " ".join(value.split()),
        width=_WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        max_lines=_MOST_LINES,
        placeholder=" ...",
    )
