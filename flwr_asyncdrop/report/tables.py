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
    """A column: its heading, its texts, and the numbers behind them to sort by.

    The numbers are None where there is none, and throughout in the column of names.
    """

    title: str
    texts: tuple[str, ...]
    values: tuple[float | None, ...]


def columns(comparison: Comparison) -> tuple[Column, ...]:
    """Return the columns of the table, in the order of the paper's.

    Accuracies are in per cent, time in seconds on the runs' clock, bytes in MB.
    """
    rows, reference = comparison.rows, comparison.reference
    target, metric = comparison.target, comparison.target.metric
    to = f"to {metric.text(target.value)}"

    def score(spread: Spread, _: Row) -> str:
        scale, spec = (100, ".2f") if metric.is_share else (1, ".4g")
        std = f" ± {scale * spread.std:{spec}}" if spread.count > 1 else ""
        return f"{scale * spread.mean:{spec}}{std}"

    return (
        Column("algorithm", tuple(row.label for row in rows), (None,) * len(rows)),
        Column(
            "seeds",
            tuple(_seeds(row) for row in rows),
            tuple(len(row.outcomes) for row in rows),
        ),
        _spreads(rows, f"{metric.extreme}. {metric.title}", lambda r: r.best, score),
        _spreads(rows, f"final {metric.title}", lambda row: row.final, score),
        _spreads(rows, f"s {to}", lambda row: row.seconds, _cost(1)),
        _spreads(rows, f"MB {to}", lambda row: row.num_bytes, _cost(_BYTES_PER_MB)),
        _overheads(rows, reference, "time overhead", lambda row: row.time_overhead),
        _overheads(rows, reference, "comm. overhead", lambda row: row.byte_overhead),
    )


def notes(comparison: Comparison) -> tuple[str, ...]:
    """Return what has to be said below the table."""
    target = comparison.target
    said = [
        f"Target: {target.metric.text(target.value)} ({target.rule}). "
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
        [column.title for column in parts],
        ["---", *("--:" for _ in parts[1:])],
        *zip(*(column.texts for column in parts), strict=True),
    ]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n{' '.join(notes(comparison))}\n"


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


def _cost(unit: float) -> Callable[[Spread, Row], str]:
    """Return what writes a cost, and how many seeds had it if not all did."""

    def text(spread: Spread, row: Row) -> str:
        seeds = len(row.outcomes)
        share = f" ({spread.count}/{seeds})" if spread.count < seeds else ""
        return f"{spread.mean / unit:,.1f}{share}"

    return text
