"""FedRolex (Alam et al., NeurIPS 2022): submodels that roll over the global model."""

from dataclasses import dataclass

import torch
from flwr_asyncdrop.aggregation import Aggregator, Buffered, combiner
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.masks import DropRate, MaskContext, MaskPolicy
from flwr_asyncdrop.parameters import in_interval, parameter, whole_from
from flwr_asyncdrop.submodel import Keep


class RollingMask(MaskPolicy):
    """Keep a window of units that moves on every round, and wraps around.

    Its width is a device's capacity, the same in every round: no rounding by chance.
    """

    def __init__(self, drop_rate: float, step: int) -> None:
        self._drop_rate = DropRate(drop_rate)
        self._step = step

    def choose(self, context: MaskContext) -> Keep:
        """Return the window of the round."""
        start = (context.round - 1) * self._step
        kept = []
        for group in context.groups:
            width = group.size - self._drop_rate.dropped(group.size, group.least)
            window = (start + torch.arange(width)) % group.size
            kept.append(window.sort().values)
        return tuple(kept)


@dataclass(frozen=True)
class FedRolex(Algorithm):
    """Average every weight over the devices that trained it, as the window rolls.

    Attributes
    ----------
    drop_rate : float
        Share of the units that a submodel leaves out, in [0, 1).
    rolling_step : int
        Units by which the window moves every round.
    """

    drop_rate: float = parameter(
        0.25, "share of the units that is left out", in_interval("[0, 1)")
    )
    rolling_step: int = parameter(
        1, "units by which the window moves every round", whole_from(1)
    )

    def masks(self) -> MaskPolicy:
        """Return the rolling window."""
        return RollingMask(self.drop_rate, self.rolling_step)

    def aggregator(self, in_flight: int) -> Aggregator:
        """Step with the mean change of half of the devices in flight."""
        size = max(in_flight // 2, 1)
        return Buffered(size, combine=combiner("mean", size, normaliser="counts"))
