"""Ranges of values, and dataclass fields that have a range and a description."""

import math
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from flwr_asyncdrop.exceptions import ConfigError

T = TypeVar("T")

Affects = Literal["results", "length", "nothing"]
"""What another value changes: a run's results, where it ends, or neither."""

_DETAILS = "flwr-asyncdrop"


@dataclass(frozen=True)
class Range:
    """The values that a parameter takes; `text` follows "must be" in messages."""

    holds: Callable[[Any], bool]
    text: str
    choices: tuple[str, ...] = ()
    """The values, if they are names."""

    def check(self, name: str, value: object) -> None:
        """Raise ConfigError, with the name, if a value is not one of them."""
        try:
            valid = self.holds(value)
        except TypeError:
            valid = False
        if not valid:
            raise ConfigError(f"{name}={value!r} must be {self.text}")


@dataclass(frozen=True)
class Details:
    """What describes a field beside its type and default."""

    help: str
    """One line, without a full stop."""
    range: Range
    section: str = ""
    """Heading under which ``--help`` and pyproject list it, and the fields after it."""
    affects: Affects = "results"


ANY = Range(lambda _: True, "any value")


def one_of(*choices: str) -> Range:
    """Return the range of these names."""
    return Range(lambda v: v in choices, f"one of {', '.join(choices)}", choices)


def at_least(bound: float) -> Range:
    """Return the finite numbers from `bound` on."""
    return Range(lambda v: bound <= v < math.inf, f"at least {bound}")


def more_than(bound: float) -> Range:
    """Return the finite numbers above `bound`."""
    return Range(lambda v: bound < v < math.inf, f"more than {bound}")


def in_interval(text: str) -> Range:
    """Return an interval from its notation, e.g. ``"[0, 1)"``."""
    low, high = (float(bound) for bound in text[1:-1].split(","))
    closed_low, closed_high = text[0] == "[", text[-1] == "]"

    def holds(value: float) -> bool:
        above = low <= value if closed_low else low < value
        return above and (value <= high if closed_high else value < high)

    return Range(holds, f"in {text}")


def parameter(
    default: T,
    help: str = "",  # noqa: A002  # argparse's word for it
    range: Range = ANY,  # noqa: A002
    section: str = "",
    affects: Affects = "results",
) -> T:
    """Return a dataclass field with its details.

    A subclass that only changes the default passes nothing else: `details` takes the
    rest from its parents.
    """
    metadata = {_DETAILS: Details(help, range, section, affects)} if help else {}
    return field(default=default, metadata=metadata)


@lru_cache
def details(kind: type) -> Mapping[str, tuple[Field[Any], Details]]:
    """Return the fields of a dataclass in their order, each with its details.

    A field that no class of the hierarchy explains, as in an algorithm from outside,
    has empty details.
    """
    explained: dict[str, Details] = {}
    for parent in reversed(kind.__mro__):
        for name, entry in getattr(parent, "__dataclass_fields__", {}).items():
            if _DETAILS in entry.metadata:
                explained[name] = entry.metadata[_DETAILS]
    nothing = Details("", ANY)
    return MappingProxyType(
        {f.name: (f, explained.get(f.name, nothing)) for f in fields(kind)}
    )


def check_parameters(instance: object) -> None:
    """Raise ConfigError if a field of a dataclass is out of its range."""
    kind: Any = type(instance)
    for name, (entry, known) in details(kind).items():
        value = getattr(instance, name)
        if value is not None or entry.default is not None:
            known.range.check(name, value)
