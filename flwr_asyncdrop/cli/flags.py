"""Every run-config key as a flag of the same name, and the types of other flags."""

import argparse
import math
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from flwr_asyncdrop.app.config import Key, RunConfig, Value, key_table
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.searched import Searched
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import A_PATH, read_integer, read_number
from flwr_asyncdrop.paths import problem_of_path
from flwr_asyncdrop.references import is_reference
from flwr_asyncdrop.simulation.local_grid import MOST_NODES

DEVICES = 104
"""The size of the simulated fleet, if neither a flag nor a trace says it."""

TASK_DEFAULTS = MappingProxyType({"task": "digits", "devices": None})
"""The defaults of the flags of `add_task`."""

MOST_SEEDS = 1000
MOST_WORKERS = 8 * (os.cpu_count() or 1)

_PREFIX = "key:"
_OWN_FLAG = {"algo": "--algos", "seed": "--seeds", "out-dir": "--out"}

NOT_OF_MANY = (*_OWN_FLAG, "overwrite", "resume", "metrics-port", "metrics-address")
"""The keys that commands of many runs set in another way, and those of a port, which
runs cannot share."""


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add ``--task`` and ``--devices``."""
    parser.add_argument(
        "--task",
        choices=tuple(PRESETS),
        default=TASK_DEFAULTS["task"],
        metavar="TASK",
        help="preset of the keys below, which override it: "
        f"{', '.join(PRESETS)} (default: {TASK_DEFAULTS['task']})",
    )
    parser.add_argument(
        "--devices",
        type=between(1, MOST_NODES),
        default=TASK_DEFAULTS["devices"],
        metavar="INT",
        help="size of the simulated fleet (default: the number of lines of --trace, or "
        f"{DEVICES})",
    )


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """Add ``--jobs``."""
    parser.add_argument(
        "--jobs",
        type=between(1, MOST_WORKERS),
        default=cores(),
        metavar="INT",
        help="cores to use; with ray, runs side by side (default: all cores)",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add ``--quiet``."""
    parser.add_argument(
        "--quiet",
        action="store_true",
        help="say how runs end only if it is badly, and nothing before",
    )


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def add_flags(
    parser: argparse.ArgumentParser,
    *,
    algos: Sequence[str] = (),
    without: Collection[str] = (),
) -> None:
    """Add one flag for every run-config key, also of `algos`, in their sections."""
    groups: dict[str, argparse._ArgumentGroup] = {}  # it has no public name
    for name, key in key_table(*algos).items():
        section = key.details.section
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        if name not in without:
            try:
                _add_flag(groups[section], key)
            except argparse.ArgumentError as error:
                raise ConfigError(f"{', '.join(algos)}: {error}") from None


def _add_flag(group: argparse._ArgumentGroup, key: Key) -> None:
    def read(text: str) -> Value:
        if key.details.range is A_PATH:
            return str(_path(text, "path")) if text else text
        try:
            return key.read(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    group.add_argument(
        *(("--out-dir", "--out") if key.name == "out-dir" else (f"--{key.name}",)),
        dest=_PREFIX + key.name,
        default=argparse.SUPPRESS,
        help=key.help.replace("%", "%%"),
        **(
            {"action": argparse.BooleanOptionalAction}
            if key.kind is bool
            else {"type": read, "metavar": key.kind.__name__.upper()}
        ),
    )


def given(arguments: argparse.Namespace) -> dict[str, Value]:
    """Return the run-config keys, and only those, that were given as flags.

    Paths are absolute, as commands that are made of them may be run elsewhere.
    """
    return {
        name.removeprefix(_PREFIX): value
        for name, value in vars(arguments).items()
        if name.startswith(_PREFIX)
    }


def words_of(settings: Mapping[str, object]) -> list[str]:
    """Return settings as the words of a command that gives them as flags."""
    words = []
    for name, value in settings.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        elif (text := str(value)).startswith("-"):  # it would be taken for a flag
            words.append(f"--{name}={text}")
        else:
            words += [f"--{name}", text]
    return words


def algos_from_outside(flag: str, words: Sequence[str]) -> list[str]:
    """Return the ``package.module:Class`` that a flag lists, before all is parsed."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(flag, dest="algos", nargs="?", default="", const="", type=names)
    listed = parser.parse_known_args(words)[0].algos
    return [name for name in listed if is_reference(name)]


def between(low: int, high: int) -> Callable[[str], int]:
    """Return the argparse type of an integer in ``[low, high]``."""

    def integer(text: str) -> int:
        try:
            number = read_integer(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be an integer") from None
        if not low <= number <= high:
            raise argparse.ArgumentTypeError(f"{number} must be in [{low}, {high}]")
        return number

    return integer


def positive(text: str) -> float:
    """Read a finite number above 0."""
    try:
        number = read_number(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number") from None
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be finite and more than 0")
    return number


def folder(text: str) -> Path:
    """Read a folder, as an absolute path."""
    return _path(text, "folder")


def file(text: str) -> Path:
    """Read a file's name, as an absolute path."""
    return _path(text, "file")


def _path(text: str, kind: str) -> Path:
    if problem := problem_of_path(text) if text else f"is empty: name a {kind}":
        raise argparse.ArgumentTypeError(f"{text!r} {problem}")
    path = Path(text).expanduser().absolute()
    try:
        path.exists()
    except OSError as error:  # a name in it is too long
        raise argparse.ArgumentTypeError(f"{text!r}: {error.strerror}") from None
    return path


def names(text: str) -> list[str]:
    """Read ``a,b,c``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def some_names(text: str) -> list[str]:
    """Read ``a,b,c``, of which there is at least one."""
    if not (found := names(text)):
        raise argparse.ArgumentTypeError(f"{text!r} names nothing: give a name")
    return found


def seeds(text: str) -> list[int]:
    """Read seeds and ranges of seeds: ``0,1,5`` or ``0-2,5``."""
    found: list[int] = []
    for part in names(text):
        match = re.fullmatch(r"([0-9]{1,18})(?:-([0-9]{1,18}))?", part)
        if match is None:
            raise argparse.ArgumentTypeError(
                f"{part!r} is neither a seed nor a range of seeds such as 0-2"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise argparse.ArgumentTypeError(f"the range {part} is empty")
        if len(found) + last - first >= MOST_SEEDS:
            raise argparse.ArgumentTypeError(f"more than {MOST_SEEDS} seeds")
        found.extend(range(first, last + 1))
    if not found:
        raise argparse.ArgumentTypeError("at least one seed is needed")
    return found


def searched(text: str, algos: Sequence[str] = ()) -> Searched:
    """Read a key and its values, for one algorithm: ``fedbuff:lr=0.1,0.2``, or all."""
    owner, colon, _ = text.partition("=")[0].rpartition(":")
    if colon and not owner:
        raise argparse.ArgumentTypeError(f"{text!r} names no algorithm before the ':'")
    return Searched(owner, *values(text.removeprefix(f"{owner}{colon}"), algos))


def values(text: str, algos: Sequence[str] = ()) -> tuple[str, list[Value]]:
    """Read a run-config key and its values: ``drop-rate=0.25,0.5``."""
    key, _, listed = text.partition("=")
    parts = names(listed)
    if not parts:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a key and its values, e.g. drop-rate=0.25,0.5"
        )
    if key in _OWN_FLAG:
        raise argparse.ArgumentTypeError(f"{key} varies by {_OWN_FLAG[key]}")
    if key in NOT_OF_MANY:
        raise argparse.ArgumentTypeError(
            f"{key} is for a single run: leave it out, or see `asyncdrop simulate`"
        )
    known = key_table(*algos)
    try:
        if key not in known:
            RunConfig.parse({key: listed})  # which knows how to say it
        return key, [known[key].read(part) for part in parts]
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
