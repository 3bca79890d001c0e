"""A comparison for a terminal, however narrow: no cell of figures is ever wrapped."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.labels import folded
from flwr_asyncdrop.report.tables import Column, columns, dealt, notes

_FRAME = 3  # a column's line and the blanks beside its text
_SHORTEST_LABEL = 12


class TerminalTable:
    """The table of a comparison, as several tables where one would be too wide.

    Each of them has the labels. Labels go on several lines, after their commas, if they
    leave no room for the widest column; figures never do.
    """

    def __init__(self, comparison: Comparison) -> None:
        self.columns = columns(comparison)
        self.notes = notes(comparison)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Fit the tables into the width of the console."""
        yield from self.tables(options.max_width, options.encoding)
        for note in self.notes:
            yield Text(note)

    def __str__(self) -> str:
        """Return the text that a console prints, as plain ``print`` does."""
        text = StringIO()
        # Rich would display it where it is in a notebook, and leave the text empty.
        Console(file=text, force_jupyter=False).print(self)
        return text.getvalue().rstrip("\n")

    def tables(self, width: int, encoding: str = "utf-8") -> Iterator[Table]:
        """Return the tables for so many columns of characters, which have a code."""
        names, *figures = (_encodable(column, encoding) for column in self.columns)
        widest = max(map(_framed, figures))
        room = max(width - 1 - _FRAME - widest, _SHORTEST_LABEL)
        labels = [folded(label, room, cell_len) for label in names.texts]
        lines = [line for label in labels for line in label.split("\n")]
        taken = max(map(cell_len, [*lines, names.title])) + _FRAME + 1
        for part in dealt(figures, width - taken, _framed):
            yield _table(names.title, labels, part, width - taken)


def _encodable(column: Column, encoding: str) -> Column:
    """Return a column as it is printed: with escapes for signs that a code lacks."""
    raw = (
        text.encode(encoding, "backslashreplace")
        for text in (column.title, *column.texts)
    )
    title, *texts = (text.decode(encoding) for text in raw)
    return replace(column, title=title, texts=tuple(texts))


def _width(column: Column) -> int:
    """Return the width in which a column's cells are whole, and its heading's words."""
    return max(map(cell_len, [*column.title.split(), *column.texts]))


def _framed(column: Column) -> int:
    return _width(column) + _FRAME


def _table(
    title: str, labels: Sequence[str], figures: Sequence[Column], room: int
) -> Table:
    table = Table()
    table.add_column(title, no_wrap=True)
    widths = _widths(figures, room - _FRAME * len(figures))
    for column, width in zip(figures, widths, strict=True):
        table.add_column(Text(column.title), justify="right", width=width)
    for place, label in enumerate(labels):
        cells = (_cell(column, place) for column in figures)
        table.add_row(Text(label), *cells)
    return table


def _widths(figures: Sequence[Column], room: int) -> list[int]:
    """Return the columns' widths: those of whole headings, for as many as have room."""
    widths = [_width(column) for column in figures]
    wanted = [max(cell_len(column.title), _width(column)) for column in figures]
    left = room - sum(widths)
    for place in sorted(range(len(widths)), key=lambda n: wanted[n] - widths[n]):
        more = wanted[place] - widths[place]
        if more <= left:
            widths[place] += more
            left -= more
    return widths


def _cell(column: Column, place: int) -> Text:
    style = "bold" if column.best[place] else ""
    return Text(column.texts[place], style=style, no_wrap=True)
