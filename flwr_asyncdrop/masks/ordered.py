"""Ordered dropout: the faster the device, the more of the first units it keeps."""

import torch

from flwr_asyncdrop.masks.policy import MaskContext, MaskPolicy
from flwr_asyncdrop.masks.rates import GradedRate
from flwr_asyncdrop.submodel import Keep


class OrderedMask(MaskPolicy):
    """Keep the first ``n - int(n * r_i)`` units of a group: ordered dropout.

    The rates ``r_i`` are those of `GradedRate`. Widths are not rounded by chance: a
    rank has one submodel, within that of every faster rank, by definition. So it is in
    HeteroFL; FjORD draws a width for every local step, up to the device's largest.

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
        self._drop_rate = GradedRate(drop_rate, round_to)
        self.is_full = self._drop_rate.rate == 0

    def choose(self, context: MaskContext) -> Keep:
        """Keep the first units of every group, as many as the rank is to train."""
        drop = self._drop_rate.of(context.rank, context.num_ranks)
        return tuple(
            torch.arange(group.size - drop.dropped(group.size, group.least))
            for group in context.groups
        )
