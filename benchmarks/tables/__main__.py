"""The tables of the pages of results, from the histories in ``results``.

``python -m benchmarks.tables`` writes them anew, and a test holds the pages against the
histories. ``python -m benchmarks.tables pack FOLDER TASK`` packs what `tune` and
`compare` left in ``FOLDER/tune-TASK`` and ``FOLDER/TASK``: histories, their
hashes and the choice of settings, and neither models nor paths of the machine.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.fair import CODED
from benchmarks.tables.archives import OURS, ROOT, adjusted, pack, read
from benchmarks.tables.cells import beside, costs, points
from benchmarks.tables.codecs import codec_table
from benchmarks.tables.factorial import factorial
from benchmarks.tables.paper import cut_off_table, paper_table
from benchmarks.tables.verdicts import SHARES, goal, verdict
from flwr_asyncdrop.cli.message import say
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.report.comparison import compare

PAGES: Final = tuple(
    ROOT / "docs" / name
    for name in (
        "results.md",
        "results-tasks.md",
        "results-fleets.md",
        "results-paper.md",
        "results-codecs.md",
        "lab.md",
    )
)
_NO_MEMORY: Final = f"{OURS[0]},group-memory=false"


def main() -> int:
    """Pack histories, or write the tables."""
    parser = Parser(prog="python -m benchmarks.tables", description=__doc__)
    packs = parser.add_subparsers(dest="command").add_parser("pack")
    packs.add_argument("folder", type=Path)
    packs.add_argument("tasks", nargs="+", metavar="task")
    try:
        arguments = parser.parse_args()
        if arguments.command == "pack":
            for task in arguments.tasks:
                pack(arguments.folder, task)
            return 0
        # All are read before the first is written.
        texts = {page: filled(page.read_text(encoding="utf-8")) for page in PAGES}
    except (AsyncDropError, OSError) as error:
        say(str(error))
        return 2
    for page, text in texts.items():
        page.write_text(text, encoding="utf-8")
    return 0


def filled(page: str) -> str:
    """Return the page with its tables, of whatever kind a comment names."""

    def table(match: re.Match[str]) -> str:
        kind, _, names = match[1].partition(": ")
        lines = lines_of(kind) if not names else _table(kind, names.split())
        return f"<!-- {match[1]} -->\n\n" + "\n".join(lines) + "\n\n<!-- end -->"

    mark = r"<!-- ([\w-]+(?:: [\w .-]+)?) -->\n.*?<!-- end -->"
    return re.sub(mark, table, page, flags=re.DOTALL)


def _table(kind: str, words: Sequence[str]) -> Iterator[str]:
    """Return the table of a kind that says which runs it is of."""
    match kind:
        case "factorial":
            return factorial(read(words[0])[0])
        case "paper":
            values = [float(word) for word in words[1:]]
            return paper_table(read(f"paper/{words[0]}")[0], values)
        case "cut-off":
            values = [float(word) for word in words[1:]]
            return cut_off_table(read(f"paper/{words[0]}")[0], values)
        case "codecs":
            return codec_table(read(f"codecs/{words[0]}")[0], float(words[1]))
        case "verdict":
            return verdict({name: read(name)[0] for name in words}, OURS[0])
        case "verdict-no-memory":
            return verdict({name: read(name)[0] for name in words}, _NO_MEMORY)
        case "verdict-same-loss":
            return verdict({name: adjusted(name) for name in words}, OURS[0])
        case "verdict-coded":
            return verdict({n: read(f"{n}{CODED}")[0] for n in words}, OURS[0])
    raise ValueError(f"there is no table {kind!r}")


def lines_of(task: str) -> Iterator[str]:
    """Yield the table of a task."""
    series, tuned = read(task)
    goals = [goal(series, share) for share in SHARES]
    tables = [compare(series, each, OURS[0]) for each in goals]
    metric = goals[0].metric
    heads = [
        f"{unit} to {metric.text(each.value)}" for each in goals for unit in ("s", "MB")
    ]
    titles = ["algorithm", "chosen", f"final {metric.title}", "beside ours", *heads]
    yield f"| {' | '.join(titles)} |"
    yield f"| --- | --- |{' --: |' * (len(titles) - 2)}"
    for row, spent in zip(tables[0].rows, costs(tables), strict=True):
        chosen = ", ".join(
            f"{k} {v:g}" for k, v in tuned.get(row.label, {}).items() if v is not False
        )
        cells = [f"`{row.label}`", chosen or "not tuned"]
        cells += [points(row.final), beside(row), *spent]
        yield f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
