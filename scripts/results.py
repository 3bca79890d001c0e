"""The tables of the pages of results, from the histories in ``results``.

``python -m scripts.results`` writes them anew, and a test holds the pages against the
histories. ``python -m scripts.results pack FOLDER TASK`` packs what `tune` and
`compare` left in ``FOLDER/tune-TASK`` and ``FOLDER/TASK``: histories, their
hashes and the choice of settings, and neither models nor paths of the machine.
"""

import io
import json
import re
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks.fair import ADJUSTED, CODED, GROUNDS, OTHERS, ground_of
from flwr_asyncdrop.app.config import INCIDENTAL
from flwr_asyncdrop.cli.message import say
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.tuned import TUNED
from flwr_asyncdrop.exceptions import AsyncDropError, DataError
from flwr_asyncdrop.report.comparison import Comparison, Row, compare
from flwr_asyncdrop.report.files import HISTORY
from flwr_asyncdrop.report.intervals import Interval
from flwr_asyncdrop.report.runlog import Point
from flwr_asyncdrop.report.series import Series, read_series
from flwr_asyncdrop.report.target import Target
from flwr_asyncdrop.storage.done import DONE
from flwr_asyncdrop.storage.whole import draft_of
from scripts.cells import beside, costs, points
from scripts.codecs import codec_table
from scripts.factorial import factorial
from scripts.paper import cut_off_table, paper_table

ROOT: Final = Path(__file__).parents[1]
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
HISTORIES: Final = ROOT / "results"
_OURS: Final = ("asyncdrop-plus", "hetero-asyncdrop")
_NO_MEMORY: Final = f"{_OURS[0]},group-memory=false"
_SHARES: Final = (0.95, 0.99)
_GOAL: Final = 0.75
_KEPT: Final = (HISTORY, DONE, TUNED)


def main() -> int:
    """Pack histories, or write the tables."""
    parser = Parser(prog="results", description=__doc__)
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


def pack(folder: Path, task: str) -> None:
    """Write ``results/TASK.tar.xz``; DataError if a run is missing, or not complete."""
    _check_complete(folder / task)
    kept = sorted(p for p in (folder / task).rglob("*") if p.name in _KEPT)
    HISTORIES.mkdir(exist_ok=True)
    with (
        draft_of(HISTORIES / f"{task}.tar.xz") as draft,
        tarfile.open(draft, "w:xz", preset=9) as archive,
    ):
        for path in kept:
            _add(archive, path, f"{task}/{path.relative_to(folder / task)}")
        name = ground_of(task)
        ground = GROUNDS.get(name)
        tuned_on = (ground and ground.tuned_on) or name
        suffix = task.removeprefix(name)
        tuned = folder / f"tune-{tuned_on}{suffix}" / TUNED
        if tuned.exists():
            _add(archive, tuned, f"{task}/{TUNED}")


def _check_complete(folder: Path) -> None:
    """Raise a DataError for the first run that a comparison lacks."""
    series = read_series([folder])
    seeds = {seed for one in series for seed in (*one.runs, *one.incomplete)}
    for one in series:
        if lacking := sorted(seeds - one.runs.keys()):
            raise DataError(
                f"{one.label} has no complete run with seed {lacking[0]} in {folder}: "
                "do the runs that are missing first"
            )


def _add(archive: tarfile.TarFile, path: Path, name: str) -> None:
    """Add a file without whose it was, and when."""
    data = path.read_bytes()
    if path.name == TUNED:
        data = without_places(data)
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def without_places(tuned: bytes) -> bytes:
    """Return what a tuning chose without where its machine had the files.

    Neither those keys nor the folder of a trace make a difference to a run, and
    histories do not have them either.
    """
    content = json.loads(tuned)
    given = content["given"]
    content["given"] = {key: given[key] for key in given if key not in INCIDENTAL}
    if "trace" in content["given"]:
        content["given"]["trace"] = Path(given["trace"]).name
    return f"{json.dumps(content, indent=1)}\n".encode()


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
            return verdict({name: read(name)[0] for name in words}, _OURS[0])
        case "verdict-no-memory":
            return verdict({name: read(name)[0] for name in words}, _NO_MEMORY)
        case "verdict-same-loss":
            return verdict({name: adjusted(name) for name in words}, _OURS[0])
        case "verdict-coded":
            return verdict({n: read(f"{n}{CODED}")[0] for n in words}, _OURS[0])
    raise ValueError(f"there is no table {kind!r}")


def verdict(grounds: Mapping[str, tuple[Series, ...]], label: str) -> Iterator[str]:
    """Yield one of ours beside the best of the others, ground by ground."""
    heads = ["final accuracy, in points"]
    heads += [f"{cost} to {share:g}" for cost in ("time", "bytes") for share in _SHARES]
    yield f"| | {' | '.join(heads)} |"
    yield f"| --- |{' --- |' * len(heads)}"
    for name, series in grounds.items():
        goals = [goal(series, share) for share in _SHARES]
        cells = [final_beside_best(series, goals[0], label)]
        for overhead, spent in (
            ("time_overhead", lambda point: point.time),
            ("byte_overhead", lambda point: point.num_bytes),
        ):
            cells += [
                cost_beside_best(series, each, label, overhead, spent) for each in goals
            ]
        yield f"| `{name}` | {' | '.join(cells)} |"


def final_beside_best(series: tuple[Series, ...], target: Target, label: str) -> str:
    """Return by how much ours ends higher than the best of the others."""
    rows = compare(series, target).rows
    finals = {
        row.label: target.metric.goodness(row.final.mean)
        for row in rows
        if row.final is not None and row.algorithm not in _OURS
    }
    best = max(finals, key=finals.__getitem__, default=None)
    if best is None:
        return "every other one diverged"
    row = _row(compare(series, target, best), label)
    return "diverged" if row.diverged else f"{beside(row)} over `{best}`"


def cost_beside_best(
    series: tuple[Series, ...],
    target: Target,
    label: str,
    overhead: str,
    cost: Callable[[Point], float],
) -> str:
    """Return ours over the least of the others, of those that most seeds reached."""

    def mean(row: Row) -> float:
        return fmean(map(cost, row.arrivals.values()))

    rows = compare(series, target).rows
    others = [row for row in rows if row.algorithm not in _OURS]
    reached = [row for row in others if row.arrivals]
    if not reached:
        return "no other reaches it"
    best = min(reached, key=lambda row: (-len(row.arrivals), mean(row)))
    row = _row(compare(series, target, best.label), label)
    found: Interval | None = getattr(row, overhead)
    if found is None:
        return "not reached"
    ratio = 1 + found.value
    text = f"{ratio:.2f}x"
    if found.low is not None and found.high is not None:
        text += f" [{1 + found.low:.2f}, {1 + found.high:.2f}]"
    text = f"**{text}**" if ratio <= _GOAL else text
    seeds = len(row.outcomes)
    own = f"{len(row.arrivals)}/{seeds}" if len(row.arrivals) < seeds else ""
    theirs = f" ({len(best.arrivals)}/{seeds})" if len(best.arrivals) < seeds else ""
    return f"{text}{own and f' ({own})'} of `{best.label}`{theirs}"


def _row(comparison: Comparison, label: str) -> Row:
    return next(row for row in comparison.rows if row.label == label)


def lines_of(task: str) -> Iterator[str]:
    """Yield the table of a task."""
    series, tuned = read(task)
    goals = [goal(series, share) for share in _SHARES]
    tables = [compare(series, each, _OURS[0]) for each in goals]
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


@cache
def read(task: str) -> tuple[tuple[Series, ...], Mapping[str, Mapping[str, Any]]]:
    """Return the runs of a task, and the settings that were chosen, if any were.

    Those of the other algorithms are among them, if they are kept.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name in (task, f"{task}{OTHERS}"):
            kept = HISTORIES / f"{name}.tar.xz"
            if name == task or kept.exists():
                packed = io.BytesIO(kept.read_bytes())
                with tarfile.open(fileobj=packed, mode="r:xz") as archive:
                    archive.extractall(folder, filter="data")
                paths.append(Path(folder) / name)
        for path in paths:
            tuned = path / TUNED
            if tuned.exists():
                chosen |= json.loads(tuned.read_text(encoding="utf-8"))["chosen"]
        return read_series(paths), chosen


def adjusted(name: str) -> tuple[Series, ...]:
    """Return the runs of those that have the loss of ours, and of ours."""
    ours = (each for each in read(name)[0] if each.algorithm in _OURS)
    return (*read(f"{name}{ADJUSTED}")[0], *ours)


def goal(series: tuple[Series, ...], share: float) -> Target:
    """Return a share of the best final value of those that are not ours.

    One that diverged with a seed has none.
    """
    others = [each for each in series if each.algorithm not in _OURS]
    metric = next(iter(others[0].curves.values())).metric
    finals = {
        each.label: fmean(curve.final.value for curve in each.curves.values())
        for each in others
        if not any(curve.diverged for curve in each.curves.values())
    }
    if not finals:
        raise DataError("every other one diverged: there is no goal to take a share of")
    best = max(finals, key=lambda label: metric.goodness(finals[label]))
    value = finals[best] / share if metric.falls else finals[best] * share
    return Target(metric, value, f"{share:g} of {best}'s final {metric.title}")


if __name__ == "__main__":
    sys.exit(main())
