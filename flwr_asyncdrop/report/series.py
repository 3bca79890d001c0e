"""The runs of a folder, put together by what was run."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.readable import printable
from flwr_asyncdrop.report.files import HISTORY, histories
from flwr_asyncdrop.report.reading import read_log
from flwr_asyncdrop.report.runlog import Curve, RunLog

_SEED = "seed-"
_NUMBER = re.compile(r"((?:(?<==)-)?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")
_DIGEST: Final = "trace-sha256"
# What algorithms are compared on; that they have settings of their own is the rule.
_GROUND: Final = (
    *("devices", "in-flight", "num-rounds", "max-seconds"),
    *("partition", "shards-per-level", "dirichlet-alpha"),
    *("image-size", "text-length", "vocabulary-size", "test-samples"),
    *("model", "width", "evaluate-every"),
    *("levels", "speed-ratio", "step-seconds", "bandwidth-mbps", "duration"),
    *("jitter", "dropout", "availability", "watts", "joules-per-megabyte"),
    *("trace", _DIGEST),
)


@dataclass(frozen=True)
class Series:
    """The runs of one algorithm or variant (``algorithm,key=value``) by seed.

    `runs` did all their rounds and were evaluated; the others are `incomplete`.
    """

    label: str
    algorithm: str
    runs: Mapping[int, RunLog]
    incomplete: Mapping[int, RunLog]

    @property
    def curves(self) -> dict[int, Curve]:
        """The headline metric of the complete runs by seed."""
        return {seed: log.curve for seed, log in self.runs.items() if log.curve}

    @property
    def settings(self) -> tuple[Mapping[str, Any], ...]:
        """What the first line of each complete run says of how it was run."""
        return tuple(
            {"devices": log.run.get("devices"), **log.run.get("config", {})}
            for log in self.runs.values()
        )

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
        key = "trace" if name == _DIGEST else name
        silent = [one for one in series if f",{key}=" not in one.label]
        if _differ([each for one in silent for each in one.settings], name):
            found.append(name)
    return tuple(found)


def _differ(settings: Iterable[Mapping[str, Any]], name: str) -> bool:
    return len({repr(each[name]) for each in settings if name in each}) > 1


def read_series(folders: Sequence[Path]) -> tuple[Series, ...]:
    """Read ``LABEL/seed-N/history.jsonl`` at any depth below some folders.

    The history of a folder of another name is labelled by its algorithm. The series are
    in the order of `ALGORITHMS`, those of other names last. DataError: there is no
    history, one cannot be read, two have the same label and seed, one label is of
    several algorithms, or data sets, headline metrics, who measured them, or clocks
    differ.
    """
    logs = _by_label((path, read_log(path)) for path in _histories(folders))
    return tuple(_series(label, logs[label]) for label in sorted(logs, key=_order))


def check_together(folder: Path, planned: Mapping[Path, RunLog]) -> None:
    """Raise the DataError that `read_series` would if some histories were there, too.

    Of those only the first lines are known. Others at their places will be replaced.
    """
    own = set(map(os.path.realpath, planned))
    others = (path for path in histories(folder) if os.path.realpath(path) not in own)
    _by_label(chain(((path, read_log(path)) for path in others), planned.items()))


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
    for label, of_label in logs.items():
        _check_algorithm(label, of_label.values())
    _check_comparable(log for of_label in logs.values() for log in of_label.values())
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
    folder = path.parent
    if folder.name.startswith(_SEED):
        return printable(folder.parent.name)
    return str(log.fact("algorithm") or printable(folder.name))


def _series(label: str, logs: Mapping[int, RunLog]) -> Series:
    algorithm = next(log.fact("algorithm") for log in logs.values())
    whole = {seed for seed, log in logs.items() if log.complete and log.curve}
    return Series(
        label=label,
        algorithm=str(algorithm or label.partition(",")[0]),
        runs={seed: logs[seed] for seed in sorted(whole)},
        incomplete={seed: logs[seed] for seed in sorted(logs.keys() - whole)},
    )


def _order(label: str) -> tuple[int, list[str | float], str]:
    """Return the algorithm's place, and words and numbers: lr=2 is before lr=10."""
    names, algorithm = list(ALGORITHMS), label.partition(",")[0]
    place = names.index(algorithm) if algorithm in names else len(names)
    parts: list[str | float] = list(_NUMBER.split(label))
    parts[1::2] = map(float, parts[1::2])
    return place, parts, label


def _check_algorithm(label: str, logs: Iterable[RunLog]) -> None:
    names = {str(name) for log in logs if (name := log.fact("algorithm")) is not None}
    if len(names) > 1:
        raise DataError(
            f"the runs in the folder {label} are of different algorithms, "
            f"{', '.join(sorted(names))}: put those of each into a folder of its own"
        )


def _check_comparable(logs: Iterator[RunLog]) -> None:
    differing: dict[str, set[str]] = {}
    for log in logs:
        facts = {"data sets": str(log.fact("dataset")), "clocks": log.time_label}
        if (curve := log.curve) is not None:
            facts["metrics"] = curve.metric.name
            facts["evaluations"] = "on the server" if curve.by_server else "by clients"
        for kind, name in facts.items():
            differing.setdefault(kind, set()).add(name)
    for kind, names in differing.items():
        if len(names) > 1:
            raise DataError(
                f"the runs have different {kind}, {', '.join(sorted(names))}: "
                "report them one by one"
            )
