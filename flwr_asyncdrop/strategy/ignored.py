"""Hyperparameters that an own aggregator, mask or objective makes meaningless."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any

from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.exceptions import ConfigError

Part = Callable[[Algorithm], object]


def refuse_ignored(
    strategy: str,
    algorithm: Algorithm,
    given: Collection[str],
    parts: Mapping[str, Part],
    replaced: Collection[str],
) -> None:
    """Raise ConfigError for a hyperparameter that was set, and that nobody reads.

    It is set if it was `given` by name, or has not its default. `parts` are what the
    algorithm makes, by the argument of the `strategy` that takes its place, and
    `replaced` the arguments that do. A hyperparameter that only those parts read would
    make no difference.
    """
    changed = {
        f.name for f in fields(algorithm) if getattr(algorithm, f.name) != f.default
    }
    read = {name: _fields_read(algorithm, part) for name, part in parts.items()}
    used = set[str]().union(*(read[name] for name in parts if name not in replaced))
    for part in replaced:
        if needless := sorted(read[part] & {*given, *changed} - used):
            raise ConfigError(
                f"{strategy}({part}=...) has no use for {', '.join(needless)}: set it "
                f"on your own {part}, or leave one of the two out"
            )


def _fields_read(algorithm: Algorithm, part: Part) -> set[str]:
    """Return the names that an algorithm reads of itself to make a part."""
    read = set[str]()

    def getattribute(self: Algorithm, name: str) -> Any:
        read.add(name)
        return object.__getattribute__(self, name)

    kind = type(algorithm)
    watched = type(kind.__name__, (kind,), {"__getattribute__": getattribute})
    twin: Any = object.__new__(watched)
    vars(twin).update(vars(algorithm))
    read.clear()
    part(twin)
    return read
