"""Ranges of run-config keys that no other dataclass has."""

import math

from flwr_asyncdrop.parameters import Range, read_number
from flwr_asyncdrop.references import is_reference


def one_of_or_reference(*names: str) -> Range:
    """Return the range of these names, and of objects from outside of the package."""
    text = f"one of {', '.join(names)}, or package.module:attribute"
    return Range(lambda name: name in names or is_reference(name), text, names)


def _are_fractions(text: str) -> bool:
    try:
        numbers = [read_number(part) for part in text.split(",") if part]
    except ValueError:
        return False
    return numbers == sorted(numbers) and all(0 < number < 1 for number in numbers)


FRACTIONS = Range(_are_fractions, "ascending fractions in (0, 1), e.g. '0.5,0.75'")

BANDWIDTH = Range(
    lambda rate: rate == 0 or 1e-6 <= rate <= 1e12,
    "in [0.000001, 1000000000000], or 0 for infinite",
)

DEADLINE = Range(
    lambda times: times == 0 or 1 <= times < math.inf,
    "at least 1 (times the expected duration of a task), or 0 for none",
)

ADDRESS = Range(bool, "an address to listen on, e.g. '0.0.0.0' for all")
