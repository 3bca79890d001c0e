"""What one check found."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]
"""With a problem runs fail; with a warning some do, or are slower."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    name : str
        What was looked at.
    level : {"ok", "warning", "problem"}
        How it is.
    found, fix : str
        What was found, and what to do about it, each in one line.
    """

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
