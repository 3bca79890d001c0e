"""What every benchmark returns, and how it is printed."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Figure", "print_json", "print_table"]


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


def print_json(figures: Iterable[Figure]) -> None:
    """Print one JSON object a line."""
    for figure in figures:
        print(json.dumps({"name": figure.name, "value": round(figure.value, 4)}))


def print_table(figures: Iterable[Figure]) -> None:
    """Print name, value, goal and whether it is met."""
    print(f"\n{'figure':<30} {'value':>10} {'goal':>10}")
    for figure in figures:
        sign = ">=" if figure.at_least else "<="
        goal = "" if figure.goal is None else f"{sign} {figure.goal:g}"
        print(f"{figure.name:<30} {figure.value:>10.4g} {goal:>10} {figure.verdict}")
