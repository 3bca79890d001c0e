"""Ordered dropout: the faster the device, the more of the first units it keeps."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks.policy import DropRate, MaskPolicy
from flwr_asyncdrop.submodel import Keep, UnitGroup

__all__ = ["OrderedMask", "graded_rate"]


class OrderedMask(MaskPolicy):
    """Keep the first ``n - int(n * r_i)`` units of a group: nested submodels (FjORD).

    The rates ``r_i`` grow evenly from 0 for the fastest rank to twice the drop rate
    for the slowest, so that a fleet saves on average what it saves when every device
    drops alike.

    Parameters
    ----------
    drop_rate : float
        The mean share of units to drop, in [0, 0.5).
    round_to : int
        Widths are multiples of it; see `DropRate`.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    def __init__(self, drop_rate: float, round_to: int = 1) -> None:
        if not 0 <= drop_rate < 0.5:
            raise ConfigError(
                f"drop_rate={drop_rate!r} must lie in [0, 0.5): the slowest device "
                "drops twice as much"
            )
        self._drop_rate = drop_rate
        self._round_to = round_to

    def assign(
        self,
        groups: Sequence[UnitGroup],
        scores: Sequence[Tensor] | None,
        rank: int,
        num_ranks: int,
        generator: torch.Generator,
    ) -> Keep:
        """Keep the first units of every group, as many as the rank is to train."""
        rate = graded_rate(self._drop_rate, rank, num_ranks)
        drop = DropRate(rate, self._round_to)
        return tuple(
            torch.arange(group.size - drop.dropped(group.size)) for group in groups
        )


def graded_rate(mean: float, rank: int, num_ranks: int) -> float:
    """Return ``2 * mean * i / (S - 1)``: 0 for rank 0, `mean` on average over ranks.

    Parameters
    ----------
    mean : float
        The mean rate.
    rank, num_ranks : int
        ``i``, 0 the fastest, and ``S``; a single rank gets the mean itself.
    """
    if num_ranks == 1:
        return mean
    return 2 * mean * rank / (num_ranks - 1)
