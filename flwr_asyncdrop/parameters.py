"""Ranges of values, and dataclass fields that have a range and a description."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.paths import problem_of_path

T = TypeVar("T")

Affects = Literal["results", "length", "nothing"]
"""What another value changes: a run's results, where it ends, or neither."""

_DETAILS = "flwr-asyncdrop"
_LONGEST_NAME = 100


@dataclass(frozen=True)
class Range:
    """The values that a parameter takes; `text` follows "must be" in messages."""

    holds: Callable[[Any], bool]
    text: str
    choices: tuple[str, ...] = ()
    """The values, if they are names."""
    whole: bool = False
    """Whether they are whole numbers."""

    def check(self, name: str, value: object) -> Any:
        """Return a value as Python has it: `plain`, and an int if it is `whole`.

        ConfigError, with the name, if it is not one of the values.
        """
        value = plain(value)
        try:
            valid = not hasattr(value, "ndim") and self.holds(value)
        except TypeError:
            valid = False
        if not valid:
            hint = did_you_mean(str(value), self.choices)
            raise ConfigError(
                f"{name}={value!r} must be {self.text}{hint and f': {hint}'}"
            )
        return int(value) if self.whole else value  # type: ignore[call-overload]


@dataclass(frozen=True)
class Details:
    """What describes a field beside its type and default."""

    help: str
    """One line, without a full stop."""
    range: Range
    section: str = ""
    """Heading under which ``--help`` and pyproject list it, and the fields after it."""
    affects: Affects = "results"


ANY = Range(lambda _: True, "no array")
A_SWITCH = Range(lambda value: value is True or value is False, "True or False")
"""A truth value: the text "false" would count as true."""

A_PATH = Range(
    lambda path: not problem_of_path(path),
    "a path: characters that can be shown, at most 4095 bytes, and no ~ of a user who "
    "is not there",
)
"""The paths that can be looked for, and ""."""


def plain(value: object) -> Any:
    """Return a scalar of NumPy or PyTorch as Python's own number, and others as is."""
    # Neither is imported: the commands say in one line that one is missing.
    if isinstance(value, type) or getattr(value, "ndim", None) != 0:
        return value
    # A dtype has no dims either, and is no number.
    return value.item() if hasattr(value, "item") else value


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a question that names the closest of the known names, or ""."""
    close = difflib.get_close_matches(name[:_LONGEST_NAME], known, n=1)
    return f"did you mean {close[0]!r}?" if close else ""


def one_of(*choices: str) -> Range:
    """Return the range of these names."""
    return Range(lambda v: v in choices, f"one of {', '.join(choices)}", choices)


def at_least(bound: float) -> Range:
    """Return the finite numbers from `bound` on."""
    return Range(lambda v: bound <= v < math.inf, f"at least {bound}")


def whole_from(bound: int) -> Range:
    """Return the whole numbers from `bound` on."""
    return Range(
        lambda v: bound <= v < math.inf and v % 1 == 0,
        f"at least {bound}, and a whole number",
        whole=True,
    )


def integer_in(least: int, most: int) -> Range:
    """Return the integers of an interval; 2.0 is none."""
    return Range(
        lambda v: isinstance(v, int) and least <= v <= most,
        f"an integer in [{least}, {most}]",
    )


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


def read_integer(text: str) -> int:
    """Read an integer of plain digits; ValueError for anything else."""
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return int(text)


def read_number(text: str) -> float:
    """Read a number of plain digits; ValueError for anything else."""
    if not text.isascii() or "_" in text:
        raise ValueError(text)
    return float(text)


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
    """Make the numbers in a dataclass Python's own; ConfigError if one is out of range.

    A frozen one, too: it is for ``__post_init__``.
    """
    kind: Any = type(instance)
    for name, (entry, known) in details(kind).items():
        value = getattr(instance, name)
        if value is not None or entry.default is not None:
            checked = known.range.check(name, value)
            if isinstance(entry.default, bool):
                checked = A_SWITCH.check(name, checked)
            object.__setattr__(instance, name, checked)
