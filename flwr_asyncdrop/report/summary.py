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
    algorithm : str
        Name of the algorithm.
    devices : int
        Size of the fleet; devices that had a task if the history does not say.
    in_flight : int or None
        Most tasks in flight; None if the history does not say.
    updates, rounds : int
        Replies merged, and rounds begun.
    time, wall_seconds : float
        Seconds on the run's clock, and real ones.
    metric : str or None
        Name of the headline metric; None if nothing was evaluated.
    final, best : Point or None
        Its last and its best value, and where.
    bytes_down, bytes_up : int
        Bytes of arrays sent and received, lost tasks included.
    bytes_full : int
        Bytes, both ways, of the merged tasks had they trained the full model.
    share_saved : float or None
        Share of `bytes_full` that was not sent; None without updates.
    mean_staleness : float or None
    max_staleness : int or None
        Staleness of the updates in versions of the model; None without updates.
    mean_queued : float
        Mean of the versions among these that came while a task waited on its device.
    updates_by_rank : mapping of int to int
        Updates merged of each speed rank, 0 the fastest.
    late : int
        Updates that came after their deadlines.
    failures : mapping of str to int
        Tasks lost, by kind.
    duplicates : int
        Replies that came twice, and were merged once.
    updates_per_second : float or None
        Updates per real second; None if there was no time.
    complete : bool
        Whether the run did all its rounds, as far as the history says.
    ended : str
        Why it ended early, as `RunState` has it; "" if that is not known.
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
        The lines of its history, e.g. of `read_history`. Evaluations, updates and the
        last line may be missing.

    Raises
    ------
    DataError
        If the first line is missing.
    """
    log = RunLog.from_records(records)
    staleness = column(log.updates, "staleness")
    by_rank = Counter(int(line["rank"]) for line in log.updates)
    if log.end is None:
        bytes_down = int(column(log.updates, "bytes_down").sum())
        bytes_up = int(column(log.updates, "bytes_up").sum())
        failures = dict(Counter(line["kind"] for line in log.failures))
    else:
        bytes_down, bytes_up = log.end["bytes_down"], log.end["bytes_up"]
        failures = log.end["failures"]
    end = log.end or {}
    seconds = log.wall_seconds
    return Summary(
        algorithm=log.fact("algorithm") or "unknown",
        devices=log.devices,
        in_flight=log.fact("in_flight"),
        updates=len(log.updates),
        rounds=max((line["round"] for line in log.updates), default=0),
        time=log.time,
        wall_seconds=seconds,
        metric=log.curve.name if log.curve else None,
        final=log.curve.final if log.curve else None,
        best=log.curve.best if log.curve else None,
        bytes_down=bytes_down,
        bytes_up=bytes_up,
        bytes_full=log.bytes_of_full_models,
        share_saved=log.share_saved,
        mean_staleness=float(staleness.mean()) if len(staleness) else None,
        max_staleness=int(staleness.max()) if len(staleness) else None,
        mean_queued=sum(line.get("queued", 0) for line in log.updates)
        / max(len(log.updates), 1),
        updates_by_rank=dict(sorted(by_rank.items())),
        late=sum("late" in line for line in log.updates),
        failures=failures,
        duplicates=end.get("duplicates", 0),
        updates_per_second=len(log.updates) / seconds if seconds > 0 else None,
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
