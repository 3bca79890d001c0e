"""Ranges of run-config keys that no other dataclass has."""

import math

from flwr_asyncdrop.parameters import Range, read_number
from flwr_asyncdrop.references import is_reference


def one_of_or_reference(*names: str) -> Range:
    """Return the range of these names, and of objects from outside of the package."""
    text = f"one of {', '.join(names)}, or package.module:attribute"
    return Range(lambda name: name in names or is_reference(name), text, names)


def read_milestones(text: str) -> tuple[tuple[float, ...], bool]:
    """Read ``0.5,0.75`` or ``1200s,1800s``; return the numbers, and if in seconds.

    ValueError if a part is no number, or only some are in seconds.
    """
    parts = [part.strip() for part in text.split(",") if part]
    in_seconds = bool(parts) and all(part.endswith("s") for part in parts)
    unit = "s" if in_seconds else ""
    return tuple(read_number(part.removesuffix(unit)) for part in parts), in_seconds


def _are_milestones(text: str) -> bool:
    try:
        numbers, in_seconds = read_milestones(text)
    except ValueError:
        return False
    most = math.inf if in_seconds else 1
    return list(numbers) == sorted(numbers) and all(0 < at < most for at in numbers)


MILESTONES = Range(
    _are_milestones,
    "ascending fractions in (0, 1), e.g. '0.5,0.75', or seconds, e.g. '1200s,1800s'",
)

BANDWIDTH = Range(
    lambda rate: rate == 0 or 1e-6 <= rate <= 1e12,
    "in [0.000001, 1000000000000], or 0 for infinite",
)

ADDRESS = Range(bool, "an address to listen on, e.g. '0.0.0.0' for all")

TRACKERS = ("tensorboard", "mlflow", "wandb", "opentelemetry")
"""The tools that a run can be written to."""


def read_trackers(text: str) -> tuple[str, ...]:
    """Read ``tensorboard,mlflow``; blanks around the names do not matter."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def _are_trackers(text: str) -> bool:
    names = read_trackers(text)
    return set(names) <= set(TRACKERS) and len(set(names)) == len(names)


TRACKED = Range(
    _are_trackers,
    f"some of {', '.join(TRACKERS)}, each once, with commas between them",
)
