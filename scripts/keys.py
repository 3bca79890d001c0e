"""Write the run-config's table of keys to where people and Flower read it.

``python -m scripts.keys`` after every change of `RunConfig` or of an algorithm's
fields; a test says when it was forgotten.
"""

import json
import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from flwr_asyncdrop.app.config import Key, key_table
from flwr_asyncdrop.parameters import ANY

ROOT = Path(__file__).parents[1]
PYPROJECT, DOCS = ROOT / "pyproject.toml", ROOT / "docs" / "keys.md"

_MARKS = {"results": "", "length": "resume", "nothing": "any"}
_BETWEEN = re.compile(r"(?<=\[tool\.flwr\.app\.config\]\n).*?(?=\n\[)", re.DOTALL)


def main() -> None:
    """Write both files."""
    PYPROJECT.write_text(pyproject(), encoding="utf-8")
    DOCS.write_text(docs(), encoding="utf-8")


def pyproject() -> str:
    """Return pyproject.toml with the section of keys as the table has it."""
    lines = ["# Written by scripts/keys.py"]
    for section, keys in sections():
        lines.append(f"# {section}")
        lines += [f"{toml(key):29} # {described(key)}" for key in keys]
    return _BETWEEN.sub(
        lambda _: "\n".join(lines) + "\n", PYPROJECT.read_text(encoding="utf-8")
    )


def docs() -> str:
    """Return the page of keys: its own words, then the tables."""
    words, mark, _ = DOCS.read_text(encoding="utf-8").partition(
        "Written by `python -m scripts.keys`:"
    )
    parts = [f"{words}{mark}"]
    for section, keys in sections():
        parts.append(f"\n## {section}\n")
        parts.append("| key | default | what it is | range | may change |")
        parts.append("|---|---|---|---|---|")
        for key in keys:
            cells = (
                f"`{key.name}`",
                f"`{json.dumps(key.default)}`" if key.own is None else own(key),
                escaped(key.meaning),
                range_of(key),
                _MARKS[key.details.affects],
            )
            parts.append(f"| {' | '.join(cells)} |")
    return "\n".join(parts) + "\n"


def sections() -> Iterator[tuple[str, Iterator[Key]]]:
    """Yield each section's name and keys."""
    return groupby(key_table().values(), lambda key: key.details.section)


def toml(key: Key) -> str:
    """Return a key and its default as TOML."""
    return f"{key.name} = {json.dumps(key.default)}"


def described(key: Key) -> str:
    """Return what a key means; of a hyperparameter, with what "" stands for."""
    return key.meaning if key.own is None else key.help


def own(key: Key) -> str:
    """Return the defaults of the algorithms that have a hyperparameter."""
    return f"the algorithm's: {key.shown_default}" if key.shown_default else ""


def range_of(key: Key) -> str:
    """Return the values that a key takes, if its meaning does not say them."""
    known = key.details.range
    said = known is ANY or known.choices or known.text in key.meaning
    return "" if said else known.text


def escaped(text: str) -> str:
    """Return text for the cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    main()
