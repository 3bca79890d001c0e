"""The archives in ``results``: histories, their hashes and the choice of settings.

They have neither models nor paths of the machine that has run them.
"""

import io
import json
import tarfile
import tempfile
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from benchmarks.fair import ADJUSTED, GROUNDS, OTHERS, SEEDS, ground_of
from flwr_asyncdrop.app.config import INCIDENTAL
from flwr_asyncdrop.cli.tuned import TUNED
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.report.files import HISTORY, histories
from flwr_asyncdrop.report.series import Series, read_series
from flwr_asyncdrop.storage.done import DONE, is_as_marked
from flwr_asyncdrop.storage.whole import draft_of

ROOT: Final = Path(__file__).parents[2]
HISTORIES: Final = ROOT / "results"
OURS: Final = ("asyncdrop-plus", "hetero-asyncdrop")


def pack(folder: Path, task: str) -> None:
    """Write ``results/TASK.tar.xz``.

    DataError if a run is missing, not complete, or another than when it ended, or if
    the choice of a ground's settings is not there.
    """
    runs = (folder / task).resolve()
    name = ground_of(task)
    _check_complete(runs, SEEDS if name in GROUNDS else ())
    tuned_on = (name in GROUNDS and GROUNDS[name].tuned_on) or name
    tuned = folder / f"tune-{tuned_on}{task.removeprefix(name)}" / TUNED
    if name in GROUNDS and not tuned.exists():
        raise DataError(f"there is no {tuned}, which has the choice of settings")
    HISTORIES.mkdir(exist_ok=True)
    with (
        draft_of(HISTORIES / f"{task}.tar.xz") as draft,
        tarfile.open(draft, "w:xz", preset=9) as archive,
    ):
        for history in histories(runs):
            for path in (history, history.with_name(DONE)):
                if path.exists():
                    _add(archive, path, f"{task}/{path.relative_to(runs)}")
        if tuned.exists():
            _add(archive, tuned, f"{task}/{TUNED}")


def _check_complete(folder: Path, seeds: Collection[int]) -> None:
    """Raise a DataError for the first run that a comparison lacks, or that changed.

    It has a run of each algorithm with each of `seeds`, and with those that any has.
    """
    for path in histories(folder):
        if not is_as_marked(path.parent, HISTORY):
            raise DataError(f"{path} is another than when its run ended: do it again")
    series = read_series([folder])
    begun = {seed for one in series for seed in (*one.runs, *one.incomplete)}
    for one in series:
        if lacking := sorted({*seeds, *begun} - one.runs.keys()):
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
    ours = (each for each in read(name)[0] if each.algorithm in OURS)
    return (*read(f"{name}{ADJUSTED}")[0], *ours)
