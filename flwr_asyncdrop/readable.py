"""Metrics, numbers of bytes, and what strangers write, as people read them."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

_JOULES = (("GJ", 1e9), ("MJ", 1e6), ("kJ", 1e3), ("J", 1.0))
_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))

_SMALL, _LARGE = 1e-4, 1e7
_MOST_DECIMALS = 12  # what is less is the rounding of something else

LONGEST_TEXT = 1000
"""Characters of a text that are shown at the most."""

# Colours of a terminal, and what points at the code in the line above.
_DECORATIONS = re.compile(r"\x1b\[[0-9;]*m|^[ ~^]*[~^]{2}[ ~^]*$", re.MULTILINE)

_BLOCKS = "▁▂▃▄▅▆▇█"
_LONGEST_VALUE = 80
_MOST_BITS = 128
_LOWER_IS_BETTER = ("loss", "error", "perplexity")
# Too short to be looked for inside of words.
_SHORT_LOWER_IS_BETTER = frozenset(
    {"cer", "mae", "mape", "mse", "nll", "ppl", "rmse", "wer"}
)


def with_article(noun: str) -> str:
    """Return a noun, or the name of a type, behind ``a`` or ``an``."""
    return f"{'an' if noun[:1].lower() in {*'aeio'} else 'a'} {noun}"


def type_of(value: object) -> str:
    """Return the name of the type of a value, with its article; ``None`` is itself."""
    return "None" if value is None else with_article(type(value).__name__)


def headline(metrics: Mapping[str, object]) -> tuple[str, float] | None:
    """Return the name and value of the metric to show if there is room for one.

    It is ``"accuracy"`` if that is a number, else the first other accuracy, such as
    ``"eval_acc"``, else the first finite number, or None.
    """
    numbers = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    if not numbers:
        return None
    accuracies = filter(is_accuracy, numbers)
    first = next(accuracies, next(iter(numbers)))
    name = "accuracy" if "accuracy" in numbers else first
    return name, numbers[name]


def is_accuracy(name: str) -> bool:
    """Return whether a metric of that name is an accuracy, e.g. ``"eval_acc"``."""
    return name.lower().endswith("accuracy") or _last_word(name) == "acc"


def lower_is_better(name: str) -> bool:
    """Return whether a metric of that name falls as the model gets better."""
    is_short = _last_word(name) in _SHORT_LOWER_IS_BETTER
    return name.lower().endswith(_LOWER_IS_BETTER) or is_short


def metric_text(name: str, value: float, decimals: int = 3) -> str:
    """Return the value of a metric: an accuracy to so many decimals.

    Another has one digit more, wherever its point is: a loss may be very small.
    """
    if is_accuracy(name):
        return f"{value:.{decimals}f}"
    return Notation.of([value], decimals + 1).text(value)


def _last_word(name: str) -> str:
    return re.split(r"[^a-z0-9]", name.lower())[-1]


@dataclass(frozen=True)
class Notation:
    """How numbers that stand together are written: to so many digits, all alike.

    Either all are powers of ten, or none is; then large ones have all digits before the
    point.
    """

    digits: int
    in_powers: bool

    @classmethod
    def of(cls, values: Iterable[float], digits: int = 4) -> Self:
        """Return what suits the largest of some numbers."""
        largest = max(map(abs, values), default=0.0)
        return cls(digits, largest >= _LARGE or 0 < largest < _SMALL)

    def text(self, value: float, sign: str = "") -> str:
        """Return a number; `sign` is ``"+"`` for one that always has a sign."""
        if self.in_powers:
            return f"{value:{sign}.{self.digits - 1}e}"
        power = int(f"{value:.{self.digits - 1}e}".partition("e")[2]) if value else 0
        decimals = min(max(self.digits - 1 - power, 0), _MOST_DECIMALS)
        text = f"{value:{sign},.{decimals}f}"
        return text.rstrip("0").rstrip(".") if decimals else text


def byte_unit(largest: float) -> tuple[str, int]:
    """Return a unit, and its bytes, in which numbers up to `largest` read well."""
    for name, size in _UNITS:
        if largest >= size:
            return name, size
    return _UNITS[-1]


def readable_bytes(count: float) -> str:
    """Return a number of bytes to three digits or more, e.g. ``"12.3 MB"``."""
    name, size = byte_unit(count)
    return f"{three_digits(count / size)} {name}"


def readable_joules(joules: float) -> str:
    """Return an energy to three digits or more, e.g. ``"12.3 kJ"``."""
    found = (each for each in _JOULES if joules >= each[1])
    name, size = next(found, _JOULES[-1])
    return f"{three_digits(joules / size)} {name}"


def three_digits(value: float) -> str:
    """Return a number to three digits, or to all of them before the point."""
    if value >= 99.95:
        return f"{value:,.0f}"
    power = int(f"{value:.2e}".partition("e")[2])
    return f"{value:.{min(2 - power, _MOST_DECIMALS)}f}"


def with_decimals(value: float, decimals: int) -> str:
    """Return a number with so many decimals, or to three digits if it would be 0."""
    text = f"{value:,.{decimals}f}"
    return three_digits(value) if value > 0 and not text.strip("0.") else text


def counted(count: int, one: str, many: str = "") -> str:
    """Return a number of things, e.g. ``"1 run"`` or ``"2,000 runs"``.

    `many` is the noun's plural if that is not the noun with an ``s``.
    """
    return f"{count:,} {one if count == 1 else many or f'{one}s'}"


def some(names: Sequence[str], most: int) -> str:
    """List at most so many of some names, and say how many others there are."""
    more = len(names) - most
    others = f" and {counted(more, 'other')}" if more > 0 else ""
    return ", ".join(names[:most]) + others


def sparkline(values: Sequence[float]) -> str:
    """Return finite numbers as a line of bars, from the lowest to the highest."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    top = len(_BLOCKS) - 1
    scale = top / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((value - low) * scale)] for value in values)


def readable_seconds(seconds: float) -> str:
    """Return a time to two units at most, e.g. ``"1 h 20 min"`` or ``"9 s"``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min" + (f" {rest} s" if rest and minutes < 10 else "")
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h" + (f" {minutes} min" if minutes else "")


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a stranger's text as one line that can be logged and shown.

    It has no control characters, such as terminals obey, nor others that are not seen,
    such as those that turn the direction of what follows. White space is single spaces.
    At most the first `longest` characters are read; "..." says that there are more.
    """
    head = "".join(
        each if each.isprintable() else " " if each.isspace() else ""
        for each in text[:longest]
    )
    return " ".join(head.split()) + ("..." if len(text) > longest else "")


def printable_ends(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text as `printable` does; of a long one, its beginning and end."""
    return _ends(text, longest, printable)


def printable_error(text: str) -> str:
    """Return a stranger's error as `printable_ends` does; a traceback ends with it.

    Colours, and the marks of a traceback below what was called, are left out.
    """
    return _ends(text, LONGEST_TEXT, lambda part: printable(_DECORATIONS.sub("", part)))


def _ends(text: str, longest: int, written: Callable[[str], str]) -> str:
    if len(text) <= longest:
        return written(text)
    first = longest // 3
    return f"{written(text[:first])}... {written(text[first - longest :])}"


def shown(value: object, longest: int = _LONGEST_VALUE) -> str:
    """Return a stranger's value as code would have it, short enough for a message.

    No more of it is read than is shown.
    """
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    whole = True
    if isinstance(value, str | bytes | list | tuple):
        whole = len(value) <= longest
        value = value[:longest]
    text = repr(value)
    return text if whole and len(text) <= longest else f"{text[:longest]}..."


def one_line(error: BaseException) -> str:
    """Return the type and the text of an error in one line."""
    return printable(f"{type(error).__name__}: {error}")


def first_line(error: BaseException | None) -> str:
    """Return what an error says first, to be quoted in the message of another."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def kind_and_line(error: BaseException) -> str:
    """Return the type of an error and what it says first, to be quoted likewise."""
    return f"{type(error).__name__}: {first_line(error)}"
