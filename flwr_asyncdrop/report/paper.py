"""Figures and a table that a paper can take as they are."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.labels import folded
from flwr_asyncdrop.report.pictures import comparison_figures, file_name
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.style import save
from flwr_asyncdrop.report.tables import Column, columns, dealt, notes
from flwr_asyncdrop.storage.whole import write_whole

_COLUMN: Final = 3.3  # inches
_FONT: Final = 7.5
_DPI: Final = 300
_LONGEST: Final = 24  # characters of a label on one line of the table
_PAGE: Final = 92  # characters of a line of the table: 5.5 inches, a page of one column
_GAP: Final = 2  # as wide as so many characters
_MINUS: Final = re.compile(r"(?<![\w-])-(?=\d)")
_ESCAPED: Final = {
    **{ord(sign): f"\\{sign}" for sign in "&%$#_{}"},
    ord("\\"): r"\textbackslash{}",
    ord("~"): r"\textasciitilde{}",
    ord("^"): r"\textasciicircum{}",
    ord("<"): r"\textless{}",
    ord(">"): r"\textgreater{}",
    ord("|"): r"\textbar{}",
    # Behind the end of a line they would be its options.
    ord("["): "{[}",
    ord("*"): "{*}",
    ord("\N{PLUS-MINUS SIGN}"): r"$\pm$",
}


def write_paper(series: Sequence[Series], comparison: Comparison, out: Path) -> None:
    """Write the figures as PDF and SVG, a column wide, and ``table.tex``."""
    target = comparison.target
    for cost, draw in comparison_figures(series, target, _COLUMN).items():
        for suffix in ("pdf", "svg"):
            path = out / f"{file_name(target.metric.name)}-{cost}.{suffix}"
            save(draw, path, dpi=_DPI, font_size=_FONT)
    write_whole(out / "table.tex", latex(comparison).encode())


def latex(comparison: Comparison) -> str:
    """Return the table in LaTeX; it takes the package booktabs.

    What would be wider than a page goes on below, with the labels again.
    """
    names, *figures = columns(comparison)
    room = _PAGE - _width(names)
    parts = [_tabular([names, *part]) for part in dealt(figures, room, _width)]
    lines = [
        "% Needs \\usepackage{booktabs} in the preamble.",
        "\\begin{table*}",
        "\\centering",
        "\\footnotesize",
        "\\setlength{\\tabcolsep}{3pt}",
        "\n\n\\medskip\n".join(parts),
        f"\\caption{{{escaped(' '.join(notes(comparison)))}}}",
        "\\end{table*}",
    ]
    return "\n".join(lines) + "\n"


def _tabular(parts: Sequence[Column]) -> str:
    lines = [
        f"\\begin{{tabular}}{{@{{}}l{'r' * (len(parts) - 1)}@{{}}}}",
        "\\toprule",
        _line(_heading(column.title) for column in parts),
        "\\midrule",
        *(_line(cells) for cells in zip(*map(_cells, parts), strict=True)),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines)


def _width(column: Column) -> int:
    """Return how many characters a column takes, with the gap beside it."""
    lines = [line for text in column.texts for line in _lines(column, text)]
    return max(map(len, [*column.title.split(), *lines])) + _GAP


def _lines(column: Column, text: str) -> list[str]:
    return folded(text, _LONGEST).split("\n") if column.key == "label" else [text]


def escaped(text: str) -> str:
    """Return a text as LaTeX shows it."""
    return text.translate(_ESCAPED)


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + " \\\\"


def _heading(title: str) -> str:
    """Return a heading on as many lines as it has words."""
    return _stacked(escaped(title).split(), "c")


def _cells(column: Column) -> list[str]:
    cells = zip(column.texts, column.best, strict=True)
    return [
        f"\\textbf{{{_cell(column, text)}}}" if best else _cell(column, text)
        for text, best in cells
    ]


def _cell(column: Column, text: str) -> str:
    shown = _stacked(map(escaped, _lines(column, text)), "l")
    return shown if column.key == "label" else _MINUS.sub("$-$", shown)


def _stacked(lines: Iterable[str], side: str) -> str:
    first, *others = lines
    if not others:
        return first
    below = " \\\\ ".join([first, *others])
    return f"\\shortstack[{side}]{{{below}}}"
