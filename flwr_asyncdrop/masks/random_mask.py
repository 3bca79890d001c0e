"""Random masks: every device drops units drawn anew (Algorithm 2)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_asyncdrop.masks.policy import MaskPolicy, checked_rate
from flwr_asyncdrop.submodel import Keep, UnitGroup

__all__ = ["RandomMask"]


class RandomMask(MaskPolicy):
    """Of a group of ``n`` units, drop ``int(n * drop_rate)`` drawn uniformly.

    Parameters
    ----------
    drop_rate : float
        The share of units to drop, in [0, 1).

    Raises
    ------
    ConfigError
        If `drop_rate` lies elsewhere.
    """

    def __init__(self, drop_rate: float) -> None:
        self._drop_rate = checked_rate(drop_rate)

    def assign(
        self,
        groups: Sequence[UnitGroup],
        scores: Sequence[Tensor] | None,
        rank: int,
        num_ranks: int,
        generator: torch.Generator,
    ) -> Keep:
        """Draw the units to keep, group by group."""
        return tuple(
            _sample(group.size, int(group.size * self._drop_rate), generator)
            for group in groups
        )


def _sample(size: int, drop: int, generator: torch.Generator) -> Tensor:
    order = torch.randperm(size, generator=generator)
    return order[drop:].sort().values
