"""A comparison as a table for people: in the terminal and in Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.markup import escape
from rich.table import Table

from flwr_asyncdrop.report.comparison import Comparison, Row, Spread

_NONE = "N/A"
_BYTES_PER_MB = 1e6


@dataclass(frozen=True)
class Column:
    """A column of the table.

    Attributes
    ----------
    title : str
        Its heading.
    texts : tuple of str
        What stands in it, row by row.
    values : tuple of float or None
        The numbers behind the texts, to sort by; None where there is none, and
        throughout in the column of names.
    """

    title: str
    texts: tuple[str, ...]
    values: tuple[float | None, ...]


def columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the columns of the table, in the order of the paper's.

    Accuracies are in per cent, time in seconds on the runs' clock, bytes in MB.
    """
    rows, reference = comparison.rows, comparison.reference
    to = f"to {comparison.target.accuracy:.2%}"
    return (
        Column("algorithm", tuple(row.label for row in rows), (None,) * len(rows)),
        Column(
            "seeds",
            tuple(_seeds(row) for row in rows),
            tuple(len(row.outcomes) for row in rows),
        ),
        _spreads(rows, "max. accuracy", lambda row: row.best, _percent),
        _spreads(rows, "final accuracy", lambda row: row.final, _percent),
        _spreads(rows, f"s {to}", lambda row: row.seconds, _seconds),
        _spreads(rows, f"MB {to}", lambda row: row.num_bytes, _megabytes),
        _overheads(rows, reference, "time overhead", lambda row: row.time_overhead),
        _overheads(rows, reference, "comm. overhead", lambda row: row.byte_overhead),
    )


def notes(comparison: Comparison) -> tuple[str, ...]:
    """Return what has to be said below the table."""
    said = [
        f"Target: {comparison.target.accuracy:.2%} ({comparison.target.rule}). "
        "Mean ± sample standard deviation over seeds."
    ]
    if comparison.reference is not None:
        said.append(
            f"Overheads are relative to {comparison.reference}, on the seeds with "
            "which both reached the target."
        )
    if any(0 < len(row.arrivals) < len(row.outcomes) for row in comparison.rows):
        said.append("(m/n): m of n seeds reached the target, and only they count.")
    cut_off = sum(len(row.incomplete) for row in comparison.rows)
    if cut_off:
        runs = "1 run is" if cut_off == 1 else f"{cut_off} runs are"
        said.append(f"{runs} incomplete (+) and left out.")
    return tuple(said)


def terminal_table(comparison: Comparison) -> Table:
    """Return the table for a terminal."""
    caption = escape("\n".join(notes(comparison)))
    table = Table(caption=caption, caption_justify="left")
    parts = columns(comparison)
    names, *figures = parts
    # Half a label says less than a heading on two lines.
    table.add_column(names.title, no_wrap=True)
    for column in figures:
        table.add_column(column.title, justify="right")
    for texts in zip(*(column.texts for column in parts), strict=True):
        table.add_row(*map(escape, texts))
    return table


def markdown(comparison: Comparison) -> str:
    """Return the table and its notes in Markdown."""
    parts = columns(comparison)
    lines = [
        _markdown_line([column.title for column in parts]),
        _markdown_line(["---", *("--:" for _ in parts[1:])]),
        *map(_markdown_line, zip(*(column.texts for column in parts), strict=True)),
        "",
        " ".join(notes(comparison)),
    ]
    return "\n".join(lines) + "\n"


def _spreads(
    rows: Sequence[Row],
    title: str,
    spread: Callable[[Row], Spread | None],
    text: Callable[[Spread, Row], str],
) -> Column:
    known = [(row, spread(row)) for row in rows]
    return Column(
        title,
        tuple(_NONE if found is None else text(found, row) for row, found in known),
        tuple(None if found is None else found.mean for _, found in known),
    )


def _overheads(
    rows: Sequence[Row],
    reference: str | None,
    title: str,
    value: Callable[[Row], float | None],
) -> Column:
    values = tuple(value(row) for row in rows)
    texts = [_NONE if number is None else f"{number:+.1%}" for number in values]
    for place, row in enumerate(rows):
        if row.label == reference and values[place] is not None:
            texts[place] = "reference"
    return Column(title, tuple(texts), values)


def _seeds(row: Row) -> str:
    extra = f" +{len(row.incomplete)}" if row.incomplete else ""
    return f"{len(row.outcomes)}{extra}"


def _percent(spread: Spread, _: Row) -> str:
    std = f" ± {100 * spread.std:.2f}" if spread.count > 1 else ""
    return f"{100 * spread.mean:.2f}{std}"


def _seconds(spread: Spread, row: Row) -> str:
    return f"{spread.mean:,.1f}{_share(spread, row)}"


def _megabytes(spread: Spread, row: Row) -> str:
    return f"{spread.mean / _BYTES_PER_MB:,.1f}{_share(spread, row)}"


def _share(spread: Spread, row: Row) -> str:
    """Return how many seeds reached the target, if not all did."""
    seeds = len(row.outcomes)
    return f" ({spread.count}/{seeds})" if spread.count < seeds else ""


def _markdown_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
