"""The metric that runs are compared by."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, Self

from flwr_asyncdrop.readable import (
    Notation,
    is_accuracy,
    lower_is_better,
    printable_ends,
)

_LONGEST_NAME = 60  # characters of a metric's
_ROUNDING = 1e-5  # of a mean over clients, whose weights may have a sum above 1

# With "final_" before them, or in a target, files have other things by these names.
_TAKEN: Final = frozenset({"difference", "difference_low", "difference_high", "rule"})

LARGEST: Final = 1e300
"""Numbers beyond it are taken for infinity: neither sums nor axes could hold them."""


@dataclass(frozen=True)
class Metric:
    """The headline metric of some runs, e.g. ``Metric("accuracy")``.

    An accuracy of which some values are `above_one` is no share: it is in per cent.
    """

    name: str
    above_one: bool = False

    @classmethod
    def of(cls, name: str, values: Iterable[float]) -> Self:
        """Return the metric of a stranger's name, with these values."""
        name = printable_ends(name, _LONGEST_NAME)
        above_one = max(values, default=0.0) > 1 + _ROUNDING
        return cls(name, cls(name).is_share and above_one)

    @property
    def key(self) -> str:
        """Its name in files, which nothing else has there."""
        return f"metric_{self.name}" if self.name in _TAKEN else self.name

    @property
    def title(self) -> str:
        """Its name in words."""
        return self.name.replace("_", " ").replace("-", " ")

    @property
    def heading(self) -> str:
        """Its name in words, with a capital."""
        return self.title[:1].upper() + self.title[1:]

    @property
    def falls(self) -> bool:
        """Whether less is better."""
        return lower_is_better(self.name)

    @property
    def is_share(self) -> bool:
        """Whether it is written in per cent."""
        return is_accuracy(self.name) and not self.above_one

    @property
    def extreme(self) -> str:
        """``"min"`` or ``"max"``: what the best value is."""
        return "min" if self.falls else "max"

    def goodness(self, value: float) -> float:
        """Return a number that is the greater, the better the value is."""
        return -value if self.falls else value

    def text(self, value: float, decimals: int = 2) -> str:
        """Return a value for people, with decimals of a per cent where it is one."""
        if self.is_share:
            return f"{value:.{decimals}%}"
        return Notation.of([value]).text(value)

    def writer(self, values: Iterable[float]) -> Callable[..., str]:
        """Return what writes values that stand together, a share in per cent.

        Its keyword `sign` is that of `Notation.text`.
        """
        if self.is_share:
            return _in_per_cent
        return Notation.of(values).text


def _in_per_cent(value: float, sign: str = "") -> str:
    return f"{100 * value:{sign}.2f}"
