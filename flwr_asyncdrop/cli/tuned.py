"""What a tuning found, in a file that a comparison reads."""

import json
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import INCIDENTAL, Value
from flwr_asyncdrop.cli.variants import value_text
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import printable
from flwr_asyncdrop.references import is_reference
from flwr_asyncdrop.storage.whole import changing, write_whole

TUNED = "tuned.json"
"""The file's name, in the folder of a tuning."""

_FORMAT = "flwr-asyncdrop tuning 1"
_BY_ALGORITHM = ("algorithms", "references", "chosen")
# What reading one raises of a file that is none.
_NO_RESULT = (ValueError, LookupError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Tuned:
    """The settings that were chosen, by the algorithm's label, and the seeds used.

    `references` names the classes from outside that have these labels, and `ground` is
    what they were tuned on, as of `ground_of`.
    """

    chosen: Mapping[str, Mapping[str, Value]]
    seeds: Sequence[int]
    references: Mapping[str, str]
    ground: Mapping[str, Any]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file; ConfigError if it is no result of a tuning."""
        try:
            content = _read(path)
            chosen = {
                str(name): {str(key): _plain(value) for key, value in each.items()}
                for name, each in content["chosen"].items()
            }
            seeds = [int(seed) for seed in content["seeds"]]
            ground = ground_of(
                content.get("task"), content.get("devices"), content.get("given", {})
            )
            return cls(chosen, seeds, dict(content.get("references", {})), ground)
        except OSError as error:
            raise ConfigError(
                f"{path}: {error.strerror}; give the {TUNED} in the folder of a tuning"
            ) from error
        except _NO_RESULT:
            raise ConfigError(
                f"{path} is no result of asyncdrop tune: give the {TUNED} in its folder"
            ) from None

    def of(self, name: str) -> Mapping[str, Value]:
        """Return the settings of an algorithm; ConfigError if it was not tuned."""
        label = algorithm(name).label()
        if label not in self.chosen:
            raise ConfigError(
                f"{label} was not tuned, and {', '.join(self.chosen)} were: a "
                "comparison of both is not fair; tune it too, or leave it out"
            )
        if (tuned := self.references.get(label, name)) != name:
            raise ConfigError(
                f"{label} was tuned as {tuned}, and not {name}, which may be another "
                "class of that name: tune that, or rename it"
            )
        return self.chosen[label]

    def check(self, seeds: Sequence[int], given: Set[str]) -> None:
        """Raise ConfigError for seeds that chose, and keys that were chosen."""
        if used := sorted(set(seeds) & set(self.seeds)):
            raise ConfigError(
                f"seed {used[0]} has chosen the settings, so its result says too much: "
                "compare with other seeds than those of the tuning, "
                f"{', '.join(map(str, self.seeds))}"
            )
        tuned = {key for each in self.chosen.values() for key in each}
        if both := sorted(tuned & given):
            raise ConfigError(f"{both[0]} was tuned: leave --{both[0]} out")

    def differences(self, ground: Mapping[str, Any]) -> list[str]:
        """Return in words where a comparison is on another ground than the tuning."""
        names = {**self.ground, **ground}
        pairs = {name: (self.ground.get(name), ground.get(name)) for name in names}
        return [
            f"{name} {_given_text(before)}, now {_given_text(now)}"
            for name, (before, now) in pairs.items()
            if before != now
        ]


def ground_of(task: str, devices: int, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what settings are tuned or compared on: the task, and keys beside it."""
    return {"task": task, "devices": devices, **_that_matter(given)}


def references(names: Iterable[str]) -> dict[str, str]:
    """Return the algorithms from outside among some names, by their labels."""
    return {algorithm(name).label(): name for name in names if is_reference(name)}


def with_earlier(
    folder: Path, content: Mapping[str, Any]
) -> tuple[Mapping[str, Any], list[str]]:
    """Add the algorithms that were tuned in a folder before, on the same terms.

    Returns the content with them, and lines that say what was there and is not any
    more. Those are algorithms whose terms were others: their choice was no fair one
    beside these. A file that is none of a tuning is such a thing, too.
    """
    path = folder / TUNED
    try:
        earlier = _read(path)
        found = {name: dict(earlier[name]) for name in _BY_ALGORITHM}
        terms = _terms(earlier)
    except FileNotFoundError:
        return content, []
    except (*_NO_RESULT, OSError):
        return content, [f"{path} could not be read as a tuning's, and is replaced"]
    # As a file has them: a tuple is a list there
    if terms != json.loads(json.dumps(_terms(content))):
        gone = sorted(found["chosen"].keys() - content["chosen"].keys())
        said = "was tuned on other terms, and is no longer in"
        return content, [f"{label} {said} {path}" for label in gone]
    for name in _BY_ALGORITHM:
        found[name] |= content[name]
    return {**content, **found}, []


def _terms(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was the same for all algorithms, and decides what is chosen."""
    left_out = {"format", *_BY_ALGORITHM}
    terms = {name: each for name, each in content.items() if name not in left_out}
    return {**terms, "given": _that_matter(terms["given"])}


def _that_matter(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that make a difference; of a trace, the file's name."""
    keys = {key: value for key, value in given.items() if key not in INCIDENTAL}
    if "trace" in keys:
        keys["trace"] = Path(keys["trace"]).name
    return keys


def write_tuned(folder: Path, content: Mapping[str, Any]) -> Path:
    """Write a result into a tuning's folder."""
    path = folder / TUNED
    text = json.dumps({"format": _FORMAT, **content}, indent=1)
    with changing(path):
        write_whole(path, f"{text}\n".encode())
    return path


def _read(path: Path) -> Any:
    content = json.loads(path.read_bytes())
    if content["format"] != _FORMAT:
        raise ValueError(content["format"])
    return content


def _given_text(value: Any) -> str:
    return "not given" if value is None else printable(value_text(value))


def _plain(value: Any) -> Value:
    if not isinstance(value, bool | int | float | str):
        raise TypeError(value)
    return value
