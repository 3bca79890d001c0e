"""How many units a submodel leaves out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import Range, in_interval, whole_from
from flwr_asyncdrop.submodel import DropCounts, UnitGroup
from flwr_asyncdrop.submodel.counts import share_of

_RATES = Range(
    lambda v: 0 <= v < 1, "in [0, 1): 0.25 drops a quarter of the units, 0 none"
)
_WIDTHS = whole_from(1)
_SPREADS = in_interval("[0, 1]")


@dataclass(frozen=True)
class DropRate:
    """How many units of a group are left out.

    `rate`, in [0, 1), is the share to drop. With `round_to`, the units kept are a
    multiple of it, in groups that have as many: widths that suit the hardware. A group
    always keeps its `least` units.
    """

    rate: float
    round_to: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _RATES.check("drop_rate", self.rate))
        widths = _WIDTHS.check("round_to", self.round_to)
        object.__setattr__(self, "round_to", widths)

    def draw(
        self, groups: Sequence[UnitGroup], generator: torch.Generator
    ) -> tuple[int, ...]:
        """Return how many units of each group a task drops.

        Where ``n * rate`` is no whole number, it is one of the two around it, and over
        many tasks the rate: a quarter of two heads is one head every other task. See
        `DropCounts`. `generator` advances only then.
        """
        counts = DropCounts(groups, self.rate, self.round_to)
        if counts.are_whole:
            return counts.of(0.0)
        # As by default: a user's own default would draw another number.
        drawn = torch.rand((), generator=generator, dtype=torch.float32)
        return counts.of(float(drawn))

    def dropped(self, size: int, least: int = 1) -> int:
        """Return a number of units to drop that is the same for every task.

        It is ``int(n * rate)``, or what leaves the nearest multiple of `round_to`: for
        policies whose widths are part of their definition.
        """
        kept = max(size - int(share_of(size, self.rate)), min(least, size))
        if self.rate == 0 or size < self.round_to:
            return size - kept
        multiples = max(round(kept / self.round_to), math.ceil(least / self.round_to))
        return size - min(multiples * self.round_to, size)


@dataclass(frozen=True)
class GradedRate:
    """Rates that grow with the rank: the slower the device, the more it drops.

    The device of rank ``i`` among ``S``, 0 the fastest, drops ``rate * (1 + spread * (2
    i / (S - 1) - 1))`` of its units: `rate` on average over the ranks, so that a fleet
    saves what it saves when every device drops alike. A single rank drops `rate`.
    `spread` lies in [0, 1]: 0 for equal rates, 1 for rates from 0 to twice the mean.
    """

    rate: float
    round_to: int = 1
    spread: float = 1.0

    def __post_init__(self) -> None:
        same = DropRate(self.rate, self.round_to)
        object.__setattr__(self, "rate", same.rate)
        object.__setattr__(self, "round_to", same.round_to)
        object.__setattr__(self, "spread", _SPREADS.check("spread", self.spread))
        if self.rate * (1 + self.spread) >= 1:
            raise ConfigError(
                f"drop_rate={self.rate!r} must be less than "
                f"{1 / (1 + self.spread):.3g}: the slowest device drops "
                f"{1 + self.spread:.3g} times as much"
            )

    def of(self, rank: int, num_ranks: int) -> DropRate:
        """Return what a rank drops."""
        place = 2 * rank / (num_ranks - 1) - 1 if num_ranks > 1 else 0.0
        return DropRate(self.rate * (1 + self.spread * place), self.round_to)
