"""A comparison on several machines: which runs each has, and what is still missing."""

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import lcm
from pathlib import Path
from typing import Any

from flwr_asyncdrop.app.config import INCIDENTAL, RunConfig
from flwr_asyncdrop.app.fleets import trace_digest
from flwr_asyncdrop.cli.runs import MOST_RUNS, RunSpec, effective, is_complete
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import counted, shown, some
from flwr_asyncdrop.storage.done import read_mark
from flwr_asyncdrop.storage.lock import FolderLock
from flwr_asyncdrop.storage.whole import changing, write_whole

DESCRIPTION = "shards.json"
"""File of a comparison's folder: what all of its shards do together."""

_FORMAT = "flwr-asyncdrop shards"
_LOCK = ".shards.lock"
_PATIENCE = 30.0
_NOT_COMPARED = INCIDENTAL | {"seed"}
_MOST_SHOWN = 5


@dataclass(frozen=True)
class Shard:
    """Part `number`, from 1 on, of the `count` parts of a comparison."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @property
    def lock(self) -> str:
        """The file of its lock, in the comparison's folder."""
        return f".shard-{self.number}-of-{self.count}.lock"


@dataclass(frozen=True)
class Standing:
    """What a comparison lacks, in lines, and whether that is nothing."""

    lines: tuple[str, ...]
    is_complete: bool


def shard(text: str) -> Shard:
    """Read ``I/N``."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be I/N, part I of N, e.g. 1/4 to 4/4"
        )
    number, count = int(match[1]), int(match[2])
    if not 1 <= count <= MOST_RUNS:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the number of shards must be in [1, {MOST_RUNS}]"
        )
    if not 1 <= number <= count:
        raise argparse.ArgumentTypeError(
            f"{text!r}: the shards of {count} are 1/{count} to {count}/{count}"
        )
    return Shard(number, count)


def deal(runs: Sequence[RunSpec], num_seeds: int, count: int) -> list[list[RunSpec]]:
    """Return the runs of each of `count` shards; `runs` is what `all_runs` returned.

    Shards differ by at most one run: in all, of each variant, and of each seed. It
    depends on the numbers of variants, seeds and shards alone.
    """
    dealt: list[list[RunSpec]] = [[] for _ in range(count)]
    num_variants = len(runs) // num_seeds
    for place, run in enumerate(runs):
        seed, variant = divmod(place, num_variants)
        position = variant * num_seeds + seed
        # Without the turns, with as many seeds as shards, a seed would be one shard's.
        turns = position // lcm(num_seeds, count)
        dealt[(position + turns) % count].append(run)
    return dealt


def describe(runs: Sequence[RunSpec], seeds: Sequence[int], count: int) -> bytes:
    """Return what all shards of a comparison have in common, as they write it down.

    Nothing in it depends on the machine, the folder or the shard.
    """
    variants = {
        run.folder.parent.name: _settings(run.config)
        for run in runs[: len(runs) // len(seeds)]
    }
    description = {
        "format": _FORMAT,
        "shards": count,
        "devices": runs[0].devices,
        "seeds": seeds,
        "order": list(variants),
        "variants": variants,
    }
    return f"{json.dumps(description, indent=1, sort_keys=True)}\n".encode()


def agree(out: Path, description: bytes) -> None:
    """Write the description into a comparison's folder, or compare what is there.

    ConfigError if that is of another comparison: it names what differs.
    """
    path = out / DESCRIPTION
    with FolderLock(out, _LOCK, _PATIENCE), changing(path):
        if not path.exists():
            write_whole(path, description)
            return
        there = path.read_bytes()
    if there != description and (found := _differences(path, there, description)):
        raise ConfigError(
            f"{path} is of another comparison ({'; '.join(found[:_MOST_SHOWN])}): give "
            "all shards the same arguments, or choose another --out; to change the "
            "comparison, delete that file while no shard runs"
        )


def standing(
    dealt: Sequence[Sequence[RunSpec]], own: Shard, undone: int, out: Path
) -> Standing:
    """Say what a shard has done, and what the others lack.

    Marks are looked for, which is quick. Only where none is missing the runs are read,
    and what is wrong with one is raised.
    """
    total = len(dealt[own.number - 1])
    others = {
        Shard(number, own.count): runs
        for number, runs in enumerate(dealt, start=1)
        if number != own.number
    }
    lacking = _without(others, lambda run: read_mark(run.folder) is not None)
    if not undone and not lacking:
        lacking = _without(others, is_complete)
    missing = undone + sum(map(len, lacking.values()))
    lines = [
        f"shard {each} lacks {len(runs)} of {counted(len(others[each]), 'run')}: "
        f"{_names(runs)}"
        for each, runs in lacking.items()
    ]
    if (more := len(lines) - _MOST_SHOWN) > 0:
        lines[_MOST_SHOWN:] = [f"{more} more shards lack runs"]
    all_of_them = counted(sum(map(len, dealt)), "run")
    lines = [
        f"shard {own}: {total - undone} of its {counted(total, 'run')} complete",
        *lines,
        f"the comparison lacks {missing} of {all_of_them} in {out}"
        if missing
        else f"the comparison is complete: {all_of_them} in {out}",
    ]
    return Standing(tuple(lines), not missing)


def _without(
    shards: Mapping[Shard, Sequence[RunSpec]], is_there: Callable[[RunSpec], bool]
) -> dict[Shard, list[RunSpec]]:
    """Return the runs that are not there, of the shards that lack any."""
    found = {
        each: [run for run in runs if not is_there(run)]
        for each, runs in shards.items()
    }
    return {each: runs for each, runs in found.items() if runs}


def _names(runs: Sequence[RunSpec]) -> str:
    return some([run.name for run in runs], _MOST_SHOWN)


def _settings(config: RunConfig) -> dict[str, Any]:
    """Return what decides the results of a run, but its seed."""
    settings = effective(config.settings, config)
    if config.trace:
        path = Path(config.trace).expanduser()
        settings["trace"] = " ".join([path.name, *trace_digest(config).values()])
    return {
        name: value for name, value in settings.items() if name not in _NOT_COMPARED
    }


def _differences(path: Path, there: bytes, here: bytes) -> list[str]:
    """Return what one description says and another one does not, in words."""
    now: Mapping[str, Any] = json.loads(here)
    try:
        before: Mapping[str, Any] = json.loads(there)
        if before["format"] != _FORMAT:
            raise ValueError
        say = partial(_said, before, now)
        found = [line for name in ("shards", "devices") for line in say(name)]
        found += [*say("seeds"), *say("order", "algorithms and variants")]
        if found:
            return found
        for label, settings in now["variants"].items():
            known = before["variants"][label]
            for name in settings:
                found += _said(known, settings, name, f"{label}: {name}")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} is no description of a comparison: delete it while no shard runs"
        ) from error
    return found


def _said(
    before: Mapping[str, Any], now: Mapping[str, Any], name: str, words: str = ""
) -> list[str]:
    if before.get(name) == now[name]:
        return []
    return [f"{words or name} {shown(before.get(name))}, now {shown(now[name])}"]
