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
    found : str
        What was found, in one line.
    mend : str
        What to do about it, in one line; empty if it is well.
    """

    name: str
    level: Level
    found: str
    mend: str = ""


def ok(name: str, found: str) -> Finding:
    """Return that all is well."""
    return Finding(name, "ok", found)


def warning(name: str, found: str, mend: str) -> Finding:
    """Return what may be in the way of some runs."""
    return Finding(name, "warning", found, mend)


def problem(name: str, found: str, mend: str) -> Finding:
    """Return what runs fail by."""
    return Finding(name, "problem", found, mend)
