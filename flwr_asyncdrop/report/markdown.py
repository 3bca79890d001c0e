"""The table of a comparison in Markdown."""

import re
from typing import Final

from flwr_asyncdrop.report.comparison import Comparison
from flwr_asyncdrop.report.tables import Column, columns, notes

# What Markdown takes for something else: not an underscore inside of a word, a star
# between blanks, a bracket without a link, and an ampersand without an entity.
_SIGNS: Final = re.compile(
    r"[\\`<|~$]|\](?=\()|(?<!\s)\*|\*(?!\s)|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)"
)


def markdown(comparison: Comparison) -> str:
    """Return the table and its notes in Markdown."""
    parts = columns(comparison)
    lines = [
        [escaped(column.title) for column in parts],
        ["---", *("--:" for _ in parts[1:])],
        *zip(*map(_cells, parts), strict=True),
    ]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n{escaped(' '.join(notes(comparison)))}\n"


def escaped(text: str) -> str:
    """Return a text on one line that Markdown shows as it is."""
    return _SIGNS.sub(r"\\\g<0>", " ".join(text.split()))


def _cells(column: Column) -> list[str]:
    texts = column.texts
    if column.key == "label":
        texts = tuple(map(escaped, texts))
    return [
        f"**{text}**" if best else text
        for text, best in zip(texts, column.best, strict=True)
    ]
