"""What a figure shows, in words, for those who do not see it."""

from collections.abc import Iterator

from flwr_asyncdrop.readable import three_digits, with_decimals
from flwr_asyncdrop.report.comparison import Comparison, Row


def described(comparison: Comparison, cost: str) -> str:
    """Say when each algorithm reaches the target, and where it ends.

    `cost` is what the x axis shows, ``"time"`` or ``"bytes"``.
    """
    target = comparison.target
    goal = target.metric.text(target.value)
    title = target.metric.heading
    against = {"time": "time", "bytes": "the bytes sent and received"}[cost]
    said = [
        f"{row.label} {' and '.join(_what(row, comparison, cost, goal))}."
        for row in comparison.rows
        if row.outcomes
    ]
    return f"{title} against {against}: {' '.join(said)}"


def _what(row: Row, comparison: Comparison, cost: str, goal: str) -> Iterator[str]:
    seeds, reached = len(row.outcomes), len(row.arrivals)
    if row.seconds is None or row.num_bytes is None:
        yield f"does not reach {goal}"
    else:
        seconds, num_bytes = row.seconds.mean, row.num_bytes.mean
        sent = f"{three_digits(num_bytes / 1e6)} MB"
        after = {"time": f"{with_decimals(seconds, 1)} s", "bytes": sent}
        share = f" with {reached} of {seeds} seeds" if reached < seeds else ""
        yield f"reaches {goal} after {after[cost]}{share}"
    if row.final is not None:
        yield f"ends at {comparison.target.metric.text(row.final.mean)}"
