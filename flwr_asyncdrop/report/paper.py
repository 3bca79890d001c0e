"""Figures and a table that a paper can take as they are."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.labels import folded
from flwr_asyncdrop.report.pictures import comparison_figures
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.style import save
from flwr_asyncdrop.report.tables import Column, columns, notes
from flwr_asyncdrop.storage.whole import write_whole

_COLUMN: Final = 3.3  # inches
_FONT: Final = 7.5
_DPI: Final = 300
_LONGEST: Final = 24  # characters of a label on one line of the table
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
            path = out / f"{target.metric.name}-{cost}.{suffix}"
            save(draw, path, dpi=_DPI, font_size=_FONT)
    write_whole(out / "table.tex", latex(comparison).encode())


def latex(comparison: Comparison) -> str:
    """Return the table, as wide as a page, in LaTeX; it takes the package booktabs."""
    parts = columns(comparison)
    lines = [
        "% Needs \\usepackage{booktabs} in the preamble.",
        "\\begin{table*}",
        "\\centering",
        "\\footnotesize",
        "\\setlength{\\tabcolsep}{3pt}",
        f"\\begin{{tabular}}{{@{{}}l{'r' * (len(parts) - 1)}@{{}}}}",
        "\\toprule",
        _line(_heading(column.title) for column in parts),
        "\\midrule",
        *(_line(cells) for cells in zip(*map(_cells, parts), strict=True)),
        "\\bottomrule",
        "\\end{tabular}",
        f"\\caption{{{escaped(' '.join(notes(comparison)))}}}",
        "\\end{table*}",
    ]
    return "\n".join(lines) + "\n"


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
    write = _label if column.key == "label" else _figure
    return [
        f"\\textbf{{{write(text)}}}" if best else write(text) for text, best in cells
    ]


def _label(label: str) -> str:
    lines = map(escaped, folded(label, _LONGEST).split("\n"))
    return _stacked(lines, "l")


def _figure(text: str) -> str:
    """Return a number with a minus sign, and its interval below it."""
    value, bracket, bounds = text.partition(" [")
    lines = [value, f"[{bounds}"] if bracket else [value]
    signed = (_MINUS.sub("$-$", escaped(line)) for line in lines)
    return _stacked(signed, "r")


def _stacked(lines: Iterable[str], side: str) -> str:
    first, *others = lines
    if not others:
        return first
    below = " \\\\ ".join([first, *others])
    return f"\\shortstack[{side}]{{{below}}}"
