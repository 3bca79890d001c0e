"""What every benchmark returns, and how it is printed."""

import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version

__all__ = ["Figure", "machine", "print_table", "say", "show"]

_STARTED = time.monotonic()


@dataclass(frozen=True)
class Figure:
    """One measured number.

    Attributes
    ----------
    name : str
        What was measured, with its unit where it has one.
    value : float
        The number.
    goal : float or None
        What it should be; None where there is no goal.
    at_least : bool
        Whether the goal is a lower bound; else it is an upper one.
    """

    name: str
    value: float
    goal: float | None = None
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """``"met"``, ``"missed"``, or nothing where there is no goal."""
        if self.goal is None:
            return ""
        met = self.value >= self.goal if self.at_least else self.value <= self.goal
        return "met" if met else "missed"


def say(text: str) -> None:
    """Say on stderr what is measured now, and how long it has been so far."""
    seconds = time.monotonic() - _STARTED
    print(f"[{seconds:4.0f} s] {text}", file=sys.stderr, flush=True)


def show(measurements: Mapping[str, Callable[[], Iterable[Figure]]]) -> list[Figure]:
    """Measure one thing after the other, and print each figure when it is there.

    Figures are JSON lines; a table of all of them comes last, and on what machine they
    were measured. What is measured now, and which of how many it is, goes to stderr.
    What fails leaves its traceback there, and the others are measured still.

    Raises
    ------
    SystemExit
        Behind the table, if something has failed: a line that names it.
    """
    figures, failures = [], []
    for number, (name, measure) in enumerate(measurements.items(), start=1):
        say(f"{number}/{len(measurements)} {name}")
        try:
            for figure in measure():
                line = {"name": figure.name, "value": round(figure.value, 4)}
                print(json.dumps(line), flush=True)
                figures.append(figure)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"{name} ({error!r:.200})")
    say("done")
    print_table(figures)
    print(f"\n{machine()}", flush=True)
    if failures:
        raise SystemExit(
            f"{len(failures)} of {len(measurements)} failed: {', '.join(failures)}"
        )
    return figures


def machine() -> str:
    """Return what this machine is, and the versions that figures depend on."""
    packages = [f"{name} {version(name)}" for name in ("flwr", "torch")]
    cores = f"{os.cpu_count()} cores"
    python = f"Python {platform.python_version()}"
    return ", ".join([platform.machine(), cores, *packages, python])


def print_table(figures: Iterable[Figure]) -> None:
    """Print name, value, goal and whether it is met."""
    print(f"\n{'figure':<30} {'value':>10} {'goal':>10}")
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        goal = "" if figure.goal is None else f"{sign} {figure.goal:g}"
        print(f"{figure.name:<30} {figure.value:>10.4g} {goal:>10} {figure.verdict}")
