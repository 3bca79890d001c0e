"""Random masks: every device drops units drawn anew (Algorithm 2)."""

import torch
from torch import Tensor

from flwr_asyncdrop.masks.policy import MaskContext, MaskPolicy
from flwr_asyncdrop.masks.rates import GradedRate
from flwr_asyncdrop.parameters import at_least
from flwr_asyncdrop.submodel import Keep


class RandomMask(MaskPolicy):
    """Of a group of ``n`` units, drop ``n * drop_rate`` drawn uniformly.

    What is no whole number is rounded by chance, see `DropRate.draw`.

    Parameters
    ----------
    drop_rate : float
        The share of units to drop, in [0, 1).
    round_to : int
        Widths are multiples of it; see `DropRate`.
    spread : float
        In [0, 1]: how much more slow devices drop than fast ones; see `GradedRate`.
    least_saving : float
        Of `MaskPolicy`, at least 0.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    def __init__(
        self,
        drop_rate: float,
        round_to: int = 1,
        *,
        spread: float = 0.0,
        least_saving: float = 0.0,
    ) -> None:
        self._drop_rate = GradedRate(drop_rate, round_to, spread)
        self.least_saving = at_least(0).check("least_saving", least_saving)
        self.is_full = self._drop_rate.rate == 0

    def choose(self, context: MaskContext) -> Keep:
        """Draw the units to keep, group by group."""
        rate = self._drop_rate.of(context.rank, context.num_ranks)
        counts = rate.draw(context.groups, context.generator)
        return tuple(
            _sample(group.size, drop, context.generator)
            for group, drop in zip(context.groups, counts, strict=True)
        )


def _sample(size: int, drop: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(size, generator=generator)
    return order[drop:].sort().values
