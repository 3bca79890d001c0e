"""What is searched: values for all algorithms, and values for one of them alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import Value
from flwr_asyncdrop.app.fleets import FLEET_KEYS
from flwr_asyncdrop.cli.variants import meaningful
from flwr_asyncdrop.exceptions import ConfigError

DATA_KEYS = frozenset(
    {
        *("dataset", "data-dir", "test-samples"),
        *("image-size", "text-length", "vocabulary-size"),
        *("partition", "shards-per-level", "dirichlet-alpha"),
    }
)
"""The keys that say what is learnt and tested with, and who holds it."""

Values = Mapping[str, Sequence[Value]]
"""Keys of the run-config, each with the values to try."""


@dataclass(frozen=True)
class Searched:
    """One ``--search``; `owner` is the algorithm that it is for, or "" for all."""

    owner: str
    key: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Search:
    """The values to try.

    Attributes
    ----------
    shared : mapping
        Keys with the values that every algorithm tries to which the key means anything.
    own : mapping
        By the label of an algorithm: what it tries instead, or besides.
    """

    shared: Values = field(default_factory=dict)
    own: Mapping[str, Values] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        flags: Iterable[Searched],
        names: Sequence[str],
        defaults: Values = MappingProxyType({}),
    ) -> "Search":
        """Return what some flags say of some algorithms; ConfigError if they clash.

        An owner is an algorithm's name or its label.
        """
        labels = {name: algorithm(name).label() for name in names}
        shared: dict[str, Sequence[Value]] = {}
        own: dict[str, dict[str, Sequence[Value]]] = {}
        for flag in flags:
            owner = labels.get(flag.owner, flag.owner)
            if owner and owner not in labels.values():
                raise ConfigError(
                    f"{owner} is searched, and is none of --algos {','.join(names)}"
                )
            found = own.setdefault(owner, {}) if owner else shared
            if flag.key in found:
                raise ConfigError(
                    f"{flag.key} is searched twice: give all of its values at once"
                )
            found[flag.key] = flag.values
        return cls({**defaults, **shared}, own)

    @property
    def keys(self) -> frozenset[str]:
        """Return every key that anybody searches."""
        return frozenset().union(self.shared, *self.own.values())

    def values(self) -> Iterator[tuple[str, Sequence[Value]]]:
        """Yield keys with values, those of all algorithms and those of one."""
        for each in (self.shared, *self.own.values()):
            yield from each.items()

    def fixed(self) -> "Search":
        """Return the keys that have one value, which is no search."""
        own = {label: _single(each) for label, each in self.own.items()}
        return Search(_single(self.shared), own)

    def check(self, names: Sequence[str], explicit: Mapping[str, Value]) -> None:
        """Raise ConfigError for a key that is given, or is of no use, or a value twice.

        `names` are the algorithms, `explicit` the keys that were given.
        """
        if both := sorted(self.keys & explicit.keys()):
            raise ConfigError(f"{both[0]} is searched: leave --{both[0]} out")
        for key, values in self.values():
            if len(set(values)) < len(values):
                raise ConfigError(
                    f"{key} is searched twice with a value: name each once"
                )
        for name in names:
            meaningful([name], tuple(self.own.get(algorithm(name).label(), ())))


def refuse_grounds(keys: Iterable[str]) -> None:
    """Refuse a search among fleets or data sets: the easiest one would win."""
    keys = set(keys)
    for ground, fixed in (("fleet", FLEET_KEYS), ("data", DATA_KEYS)):
        if found := sorted(fixed & keys):
            raise ConfigError(
                f"{found[0]} is of the {ground}, which is the same for all: leave it "
                "out of --search"
            )


def _single(searched: Values) -> Values:
    return {key: each for key, each in searched.items() if len(each) == 1}
