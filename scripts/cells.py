"""What the cells of the tables of results say."""

from collections.abc import Sequence
from typing import Final

from flwr_asyncdrop.report.comparison import Comparison, Row, Spread
from flwr_asyncdrop.report.intervals import Interval

MB: Final = 1e6
NONE: Final = "–"


def points(spread: Spread | None) -> str:
    """Return a share in points, with its standard deviation if there are seeds."""
    if spread is None:
        return NONE
    mean, std = (f"{100 * value:.1f}" for value in (spread.mean, spread.std))
    return f"{mean} ± {std}" if spread.count > 1 else mean


def beside(row: Row) -> str:
    """Return by how much it differs from ours, seed by seed, with the interval."""
    found: Interval | None = row.final_difference
    if found is None:
        return NONE
    text = f"{100 * found.value:+.1f}"
    if found.low is None or found.high is None:
        return text
    clear = "\\*" if found.is_clear else ""
    return f"{text} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]{clear}"


def cost(row: Row, spread: Spread | None, unit: float, *, first: float | None) -> str:
    """Return seconds or megabytes, and how many seeds got there if not all did."""
    if spread is None:
        return NONE
    text = (
        f"{spread.mean / unit:,.0f}"
        if spread.mean / unit >= 100
        else f"{spread.mean / unit:.1f}"
    )
    if spread.count < len(row.outcomes):
        return f"{text} ({spread.count}/{len(row.outcomes)})"
    return f"**{text}**" if spread.mean == first else text


def least(tables: Sequence[Comparison]) -> list[tuple[float | None, float | None]]:
    """Return the least seconds and bytes of those whose seeds all got there."""
    found = []
    for table in tables:
        rows = [row for row in table.rows if len(row.arrivals) == len(row.outcomes)]
        seconds = [row.seconds.mean for row in rows if row.seconds]
        sizes = [row.num_bytes.mean for row in rows if row.num_bytes]
        found.append((min(seconds, default=None), min(sizes, default=None)))
    return found
