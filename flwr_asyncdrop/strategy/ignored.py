"""Hyperparameters that an own aggregator, mask or objective makes meaningless."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.exceptions import ConfigError


def refuse_ignored(
    strategy: str,
    algorithm: Algorithm,
    given: Collection[str],
    own: Mapping[str, object],
    in_flight: int,
) -> None:
    """Raise ConfigError for a hyperparameter that was set, and that nobody reads.

    It is set if it was `given` by name, or has not its default. `own` has the user's
    own parts by the argument of the `strategy`; None leaves that part to the
    `algorithm`. What the algorithm reads to make a part that is replaced, and for no
    other, would make no difference.
    """
    if all(part is None for part in own.values()):
        return
    changed = changed_fields(algorithm)
    read = {
        "aggregator": _fields_read(algorithm, lambda made: made.aggregator(in_flight)),
        "masks": _fields_read(algorithm, lambda made: made.masks()),
        "objective": _fields_read(algorithm, lambda made: made.objective()),
        "selection": _fields_read(algorithm, lambda made: made.selection()),
        "work": _fields_read(algorithm, lambda made: made.work()),
    }
    used = set[str]().union(*(read[part] for part in read if own[part] is None))
    for part in read:
        needless = sorted(read[part] & {*given, *changed} - used)
        if own[part] is not None and needless:
            raise ConfigError(
                f"{strategy}({part}=...) has no use for {', '.join(needless)}: set it "
                f"on your own {part}, or leave one of the two out"
            )


def refuse_untrimmed(strategy: str, algorithm: Algorithm) -> None:
    """Raise ConfigError for a `trim` that is not the default, and trims nothing."""
    combine = getattr(algorithm, "combine", None)
    if combine not in ("mean", "median"):
        return
    if "trim" in changed_fields(algorithm):
        raise ConfigError(
            f"{strategy}(trim=...) has no effect with combine={combine!r}, which "
            "cuts nothing off: choose combine='trimmed-mean', or leave it out"
        )


def changed_fields(algorithm: Algorithm) -> list[str]:
    """Return the names of the hyperparameters that have not their defaults."""
    return [f.name for f in fields(algorithm) if _is_changed(algorithm, f)]


def _is_changed(algorithm: Algorithm, entry: Field[Any]) -> bool:
    made = entry.default_factory
    default = entry.default if made is MISSING else made()
    return bool(getattr(algorithm, entry.name) != default)


def _fields_read(algorithm: Algorithm, part: Callable[[Algorithm], object]) -> set[str]:
    """Return the names that an algorithm reads of itself to make a part."""
    read = set[str]()

    def getattribute(self: Algorithm, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(self, name)

    kind = type(algorithm)
    watched = type(kind.__name__, (kind,), {"__getattribute__": getattribute})
    twin: Any = object.__new__(watched)
    vars(twin).update(vars(algorithm))
    for entry in fields(algorithm):  # they may be slots
        object.__setattr__(twin, entry.name, getattr(algorithm, entry.name))
    read.clear()
    part(twin)
    return read
