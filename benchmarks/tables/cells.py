"""What the cells of the tables of results say."""

from collections.abc import Sequence
from typing import Final

from flwr_asyncdrop.report.comparison import Comparison, Row, Spread
from flwr_asyncdrop.report.intervals import Interval

_MB: Final = 1e6
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


def costs(tables: Sequence[Comparison]) -> list[list[str]]:
    """Return for each row the seconds and megabytes to each target, least in bold.

    The tables have the same rows. The least is of those whose seeds all got there.
    """
    rows: list[list[str]] = [[] for _ in tables[0].rows]
    for table in tables:
        arrived = [row for row in table.rows if len(row.arrivals) == len(row.outcomes)]
        seconds = [row.seconds.mean for row in arrived if row.seconds]
        sizes = [row.num_bytes.mean for row in arrived if row.num_bytes]
        for cells, row in zip(rows, table.rows, strict=True):
            cells.append(_cost(row, row.seconds, 1, min(seconds, default=None)))
            cells.append(_cost(row, row.num_bytes, _MB, min(sizes, default=None)))
    return rows


def _cost(row: Row, spread: Spread | None, unit: float, least: float | None) -> str:
    """Return a cost in its unit, and how many seeds got there if not all did."""
    if spread is None:
        return NONE
    mean = spread.mean / unit
    text = f"{mean:,.0f}" if mean >= 100 else f"{mean:.1f}"
    if spread.count < len(row.outcomes):
        return f"{text} ({spread.count}/{len(row.outcomes)})"
    return f"**{text}**" if spread.mean == least else text
