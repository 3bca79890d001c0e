"""What one check found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]
"""With a problem runs fail; with a warning some do, or are slower."""


@dataclass(frozen=True)
class Finding:
    """What was checked, how it is, and in one line each what was found and its fix."""

    name: str
    level: Level
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(name, "ok", found)


def warning(name: str, found: str, fix: str) -> Finding:
    """Return what may be in the way of some runs."""
    return Finding(name, "warning", found, fix)


def problem(name: str, found: str, fix: str) -> Finding:
    """Return what runs fail by."""
    return Finding(name, "problem", found, fix)
