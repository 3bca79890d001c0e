"""Metrics and numbers of bytes as people read them."""

import math
from collections.abc import Mapping

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_LOWER_IS_BETTER = ("loss", "error", "perplexity")


def headline(metrics: Mapping[str, object]) -> tuple[str, float] | None:
    """Return the name and value of the metric to show if there is room for one.

    It is ``"accuracy"`` if that is a number, else the first finite number, or None.
    """
    numbers = {
        name: float(value)
        for name, value in metrics.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
    if not numbers:
        return None
    name = "accuracy" if "accuracy" in numbers else next(iter(numbers))
    return name, numbers[name]


def lower_is_better(name: str) -> bool:
    """Return whether a metric of that name falls as the model gets better."""
    return name.lower().endswith(_LOWER_IS_BETTER)


def byte_unit(largest: float) -> tuple[str, int]:
    """Return a unit, and its bytes, in which numbers up to `largest` read well."""
    for name, size in _UNITS:
        if largest >= size:
            return name, size
    return _UNITS[-1]


def readable_bytes(count: float) -> str:
    """Return a number of bytes to three digits or more, e.g. ``"12.3 MB"``."""
    unit, size = byte_unit(count)
    value = count / size
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f} {unit}"


def one_line(error: BaseException) -> str:
    """Return the type and the text of an error in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def first_line(error: BaseException | None) -> str:
    """Return what an error says first, to be quoted in the message of another."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
