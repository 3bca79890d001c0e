"""The runs of a folder, put together by what was run."""

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history_lines import TRACE_DIGEST
from flwr_asyncdrop.readable import printable
from flwr_asyncdrop.report.comparable import check_comparable
from flwr_asyncdrop.report.files import HISTORY, SEED, histories
from flwr_asyncdrop.report.reading import read_if_begun
from flwr_asyncdrop.report.runlog import Curve, RunLog

_NUMBER = re.compile(r"((?:(?<==)-)?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
# What algorithms are compared on; that they have settings of their own is the rule.
_GROUND: Final = (
    *("devices", "in-flight", "num-rounds", "max-seconds"),
    *("partition", "shards-per-level", "dirichlet-alpha"),
    *("image-size", "text-length", "vocabulary-size", "test-samples"),
    *("model", "width", "evaluate-every"),
    *("clock", "levels", "speed-ratio", "step-seconds", "bandwidth-mbps", "duration"),
    *("jitter", "dropout", "availability", "watts", "joules-per-megabyte"),
    *("trace", TRACE_DIGEST),
)


@dataclass(frozen=True)
class Series:
    """The runs of one algorithm or variant (``algorithm,key=value``) by seed.

    `runs` did all their rounds and were evaluated; the others are `incomplete`. Those
    that are `unwritten` have no line in their histories yet: they have a seed if their
    folders say it.
    """

    label: str
    algorithm: str
    runs: Mapping[int, RunLog]
    incomplete: Mapping[int, RunLog]
    unwritten: tuple[int | None, ...] = ()

    @property
    def others(self) -> tuple[int | None, ...]:
        """The seeds of all runs that are not complete, None where it is not known."""
        return (*self.incomplete, *self.unwritten)

    @property
    def curves(self) -> dict[int, Curve]:
        """The headline metric of the complete runs by seed."""
        return {seed: log.curve for seed, log in self.runs.items() if log.curve}

    @property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """What the first line of each complete run says of how it was run."""
        return tuple(map(_settings, self.runs.values()))

    @property
    def differing(self) -> tuple[str, ...]:
        """The settings in which the complete runs differ, beside their seeds."""
        names = dict.fromkeys(name for each in self.settings for name in each)
        return tuple(
            printable(name)
            for name in names
            if name != "seed" and _differ(self.settings, name)
        )


def ground_differs_in(series: Sequence[Series]) -> tuple[str, ...]:
    """Return what else than algorithms and their settings differs between series.

    What a label says, as in ``fedbuff,levels=4``, differs on purpose.
    """
    found = []
    for name in _GROUND:
        key = "trace" if name == TRACE_DIGEST else name
        silent = [one for one in series if f",{key}=" not in one.label]
        if _differ([each for one in silent for each in one.settings], name):
            found.append(name)
    return tuple(found)


def _settings(log: RunLog) -> Mapping[str, Any]:
    defaults = log.run.get("defaults", {})
    return {
        "devices": log.run.get("devices"),
        **log.run.get("config", {}),
        **{f"{name} by default": value for name, value in defaults.items()},
    }


def _differ(settings: Iterable[Mapping[str, Any]], name: str) -> bool:
    return len({repr(each[name]) for each in settings if name in each}) > 1


def read_series(folders: Sequence[Path]) -> tuple[Series, ...]:
    """Read ``LABEL/seed-N/history.jsonl`` at any depth below some folders.

    The history of a folder of another name is labelled by its algorithm, or the folder
    if it has no line yet. The series are in the order of `ALGORITHMS`, those of other
    names last. DataError: there is no history, one cannot be read, two have the same
    label and seed, one label is of several algorithms, or data sets, headline metrics,
    who measured them, or clocks differ.
    """
    read = {path: read_if_begun(path) for path in _histories(folders)}
    logs = _by_label((path, log) for path, log in read.items() if log is not None)
    unwritten: defaultdict[str, list[int | None]] = defaultdict(list)
    for path in (path for path, log in read.items() if log is None):
        unwritten[printable(named(path)[0])].append(named(path)[1])
    return tuple(
        _series(label, logs.get(label, {}), unwritten[label])
        for label in sorted(logs.keys() | unwritten.keys(), key=_order)
    )


def check_together(folder: Path, planned: Mapping[Path, RunLog]) -> None:
    """Raise the DataError that `read_series` would if some histories were there, too.

    Of those only the first lines are known. Others at their places will be replaced.
    """
    own = set(map(os.path.realpath, planned))
    others = (path for path in histories(folder) if os.path.realpath(path) not in own)
    read = ((path, read_if_begun(path)) for path in others)
    begun = ((path, log) for path, log in read if log is not None)
    _by_label(chain(begun, planned.items()))


def _by_label(
    found: Iterable[tuple[Path, RunLog]],
) -> dict[str, dict[int, RunLog]]:
    """Return histories by label and seed; DataError if they are not comparable."""
    logs: dict[str, dict[int, RunLog]] = {}
    for path, log in found:
        label = _label(path, log)
        of_label, seed = logs.setdefault(label, {}), _seed(path, log)
        if seed in of_label:
            raise DataError(
                f"{path} is a second run of {label} with seed {seed}: report one "
                "folder of results at a time"
            )
        of_label[seed] = log
    check_comparable(logs)
    return logs


def _seed(path: Path, log: RunLog) -> int:
    seed = log.run.get("seed")
    if not isinstance(seed, int):
        raise DataError(
            f"the history {path} is damaged (its seed is {seed!r}): do the run again"
        )
    return seed


def _histories(folders: Iterable[Path]) -> list[Path]:
    found = {path.resolve(): path for folder in folders for path in histories(folder)}
    if not found:
        names = ", ".join(map(str, folders)) or "no folder"
        raise DataError(f"there is no {HISTORY} in {names}: do some runs first")
    return sorted(found.values())


def _label(path: Path, log: RunLog) -> str:
    if path.parent.name.startswith(SEED):
        return printable(named(path)[0])
    return str(log.fact("algorithm") or printable(path.parent.name))


def named(path: Path) -> tuple[str, int | None]:
    """Return the label and the seed that the folders of a history say.

    The seed is None for a folder of another name than ``seed-N``, which is the label.
    """
    folder = path.parent
    if not folder.name.startswith(SEED):
        return folder.name, None
    seed = folder.name.removeprefix(SEED)
    return folder.parent.name, int(seed) if seed.isdecimal() else None


def _series(
    label: str, logs: Mapping[int, RunLog], unwritten: Sequence[int | None]
) -> Series:
    algorithm = next((log.fact("algorithm") for log in logs.values()), None)
    whole = {seed for seed, log in logs.items() if log.complete and log.curve}
    return Series(
        label=label,
        algorithm=str(algorithm or label.partition(",")[0]),
        runs={seed: logs[seed] for seed in sorted(whole)},
        incomplete={seed: logs[seed] for seed in sorted(logs.keys() - whole)},
        unwritten=tuple(unwritten),
    )


def _order(label: str) -> tuple[int, list[str | float], str]:
    """Return the algorithm's place, and words and numbers: lr=2 is before lr=10."""
    names, algorithm = list(ALGORITHMS), label.partition(",")[0]
    place = names.index(algorithm) if algorithm in names else len(names)
    parts: list[str | float] = list(_NUMBER.split(label))
    parts[1::2] = map(float, parts[1::2])
    return place, parts, label
