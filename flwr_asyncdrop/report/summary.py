"""What a run came to, in a few lines of text."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from flwr_asyncdrop.observers.speed_groups import group_of_rank
from flwr_asyncdrop.readable import (
    counted,
    metric_text,
    printable,
    readable_bytes,
    readable_joules,
    three_digits,
    with_decimals,
)
from flwr_asyncdrop.report.runlog import Point, RunLog

_WIDTH = 80
_MOST_LINES = 4
_MOST_GROUPS = 4
_CUT_OFF = "the run did not do all its rounds"
_ENDINGS = {
    "timeout": f"{_CUT_OFF}: no device trained any more",
    "failures": f"{_CUT_OFF}: in the end every task failed",
    "error": "an error ended the run",
}


class Summary:
    """The figures of a run; None, or "" for a text, is what its history lacks.

    Bytes and `joules` include those of lost tasks, but for `bytes_full`: what the
    merged tasks would have cost with full models, of which `share_saved` was not sent.
    Of a run that was cut off they are those up to its last evaluation, or the bytes of
    the merged tasks if these are more.

    Staleness is in versions, and `mean_queued` of it came while a task waited on its
    device. `mean_work` is the mean share of the usual local steps that updates were
    asked for, None without a work policy. `failures` counts the lost tasks by kind,
    `duplicates` the replies that came twice and were merged once, `late` the updates
    that came after their deadlines. `final` has the last finite value of the metric,
    after which a run may have `diverged`. `every`: the history keeps one update in so
    many; all figures are of all updates. `cut_off` says why a run is not complete, ""
    if it is.
    """

    def __init__(self, log: RunLog) -> None:
        totals, curve, end = log.totals, log.curve, log.end or {}
        updates = totals.updates
        self.algorithm: str = log.fact("algorithm") or ""
        self.devices = log.devices
        self.in_flight: int | None = log.fact("in_flight")
        self.updates = updates
        self.every = log.every
        self.rounds: int = totals.round
        self.time = log.time
        self.wall_seconds = log.wall_seconds
        self.updates_per_second = (
            updates / log.wall_seconds if log.wall_seconds > 0 else None
        )
        self.metric = curve.metric.name if curve else None
        self.final = curve.final if curve else None
        self.best = curve.best if curve else None
        self.diverged = curve is not None and curve.diverged
        last = log.evaluations[-1] if log.evaluations else {}
        down = max(totals.bytes_down, last.get("bytes_down", 0))
        up = max(totals.bytes_up, last.get("bytes_up", 0))
        self.bytes_down: int = end.get("bytes_down", down)
        self.bytes_up: int = end.get("bytes_up", up)
        self.joules = log.joules
        self.bytes_full = log.bytes_of_full_models
        self.share_saved = log.share_saved
        self.mean_staleness = totals.staleness / updates if updates else None
        self.max_staleness = totals.most_staleness if updates else None
        self.mean_queued = totals.queued / max(updates, 1)
        self.updates_by_rank = dict(sorted(totals.ranks.items()))
        shares = totals.work.values()
        self.mean_work = sum(shares) / updates if shares else None
        self._work_by_rank = totals.work
        self._num_ranks = _num_ranks(log)
        self.late = totals.late
        self.failures: Mapping[str, int] = end.get("failures", totals.failures)
        self.duplicates: int = end.get("duplicates", 0)
        self.complete = log.complete
        self.ended: str = end.get("ended", "")
        self.cut_off = "" if log.complete else _ENDINGS.get(self.ended, _CUT_OFF)

    def text(self) -> str:
        """Return an aligned plain-text table, at most 23 lines of 80 columns."""
        rows = list(self._rows())
        width = max(len(label) for label, _ in rows) + 2
        return "\n".join(_wrapped(label.ljust(width), value) for label, value in rows)

    def _rows(self) -> Iterator[tuple[str, str]]:
        if self.algorithm:
            yield "algorithm", self.algorithm
        slots = "" if self.in_flight is None else f", {self.in_flight:,} in flight"
        yield "fleet", f"{counted(self.devices, 'device')}{slots}"
        rate = self.updates_per_second
        speed = "" if rate is None else f", {with_decimals(rate, 1)} per real second"
        kept = f"; 1 in {self.every:,} kept" if self.every > 1 else ""
        rounds = counted(self.rounds, "round")
        yield "updates", f"{self.updates:,} in {rounds}{speed}{kept}"
        real = with_decimals(self.wall_seconds, 1)
        time = with_decimals(self.time, 1)
        yield "time", f"{time} s, {real} s real without start and end"
        if self.metric is None or self.final is None or self.best is None:
            yield "accuracy", "not evaluated"
        else:
            final = _described(self.metric, self.final)
            if self.diverged:
                yield f"last {self.metric}", f"{final}; then it diverged"
            else:
                yield f"final {self.metric}", final
            yield f"best {self.metric}", _described(self.metric, self.best)
        down, up = readable_bytes(self.bytes_down), readable_bytes(self.bytes_up)
        yield "bytes", f"{down} down, {up} up"
        if self.joules is not None:
            yield "energy", readable_joules(self.joules)
        if self.share_saved is not None:
            full, share = readable_bytes(self.bytes_full), self.share_saved
            saved = f"{share:.1%} saved" if share >= 0 else f"{-share:.1%} more sent"
            yield "full models", f"{full} for the same updates: {saved}"
        if self.mean_staleness is not None:
            most = counted(self.max_staleness or 0, "version")
            text = f"mean {self.mean_staleness:.1f}, max {most}"
            queued = self.mean_queued
            text += f"; {queued:.1f} of it in queues" if queued else ""
            yield "staleness", text
        if self.updates_by_rank:
            yield "by rank", self._counts_by_rank()
        if self.mean_work is not None:
            text = f"mean {three_digits(self.mean_work)} of the usual"
            groups = self._work_by_group()
            shown = f"; by speed group {' '.join(groups)}" if len({*groups}) > 1 else ""
            yield "local steps", text + shown
        if self.late:
            yield "late", f"{counted(self.late, 'update')} came after the deadline"
        lost = ", ".join(f"{n:,} {kind}" for kind, n in self.failures.items())
        yield "tasks lost", lost or "none"
        if self.duplicates:
            replies = counted(self.duplicates, "reply", "replies")
            yield "duplicates", f"{replies} came twice, merged once"
        if self.cut_off:
            yield "cut off", self.cut_off

    def _counts_by_rank(self) -> str:
        """Return the updates of each rank, beside its number if some are missing."""
        counts = self.updates_by_rank
        if max(counts) < self._num_ranks:
            counts = {rank: counts.get(rank, 0) for rank in range(self._num_ranks)}
        if list(counts) == list(range(len(counts))):
            numbers = " ".join(f"{n:,}" for n in counts.values())
        else:
            numbers = ", ".join(f"{rank}: {n:,}" for rank, n in counts.items())
        if len(counts) > 1:
            return f"{numbers} updates, fastest first"
        return f"{numbers} {'update' if [*counts.values()] == [1] else 'updates'}"

    def _work_by_group(self) -> list[str]:
        """Return the mean share of local steps by speed group, "-" of no update."""
        num_ranks = max(self._num_ranks, max(self.updates_by_rank) + 1)
        shares = [0.0] * min(num_ranks, _MOST_GROUPS)
        updates = [0] * len(shares)
        for rank, count in self.updates_by_rank.items():
            group = group_of_rank(rank, num_ranks, _MOST_GROUPS)
            shares[group] += self._work_by_rank.get(rank, 0.0)
            updates[group] += count
        return [
            three_digits(share / count) if count else "-"
            for share, count in zip(shares, updates, strict=True)
        ]


def summarise(records: Iterable[dict[str, Any]]) -> Summary:
    """Summarise a run from the lines of its history, e.g. of `read_history`.

    All but the first line may be missing; without that it is a DataError.
    """
    return Summary(RunLog.from_records(records))


def _num_ranks(log: RunLog) -> int:
    """Return how many ranks have devices; 0 if it is not known.

    A real fleet that is smaller than what may be in flight has ranks without devices.
    """
    slots = log.fact("in_flight") or 0
    simulated = log.fact("clock") == "virtual"
    return min(slots, log.devices) if simulated or slots <= log.devices else 0


def _described(metric: str, point: Point) -> str:
    value = metric_text(metric, point.value, 4)
    return f"{value} at update {point.update:,}, {with_decimals(point.time, 1)} s"


def _wrapped(label: str, value: str) -> str:
    return textwrap.fill(
        printable(value),
        width=_WIDTH,
        initial_indent=label,
        subsequent_indent=" " * len(label),
        max_lines=_MOST_LINES,
        placeholder=" ...",
    )
