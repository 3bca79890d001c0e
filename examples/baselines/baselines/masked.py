"""Algorithms that choose the units of submodels in another way.

A coordinate is averaged over the devices that trained it.
"""

from dataclasses import dataclass

import torch
from flwr_asyncdrop.aggregation import Aggregator, Buffered, combiner
from flwr_asyncdrop.algorithms import BufferSized
from flwr_asyncdrop.masks import GradedRate, MaskContext, MaskPolicy
from flwr_asyncdrop.parameters import in_interval, more_than, parameter
from flwr_asyncdrop.submodel import Keep

# Multiples of it, modulo 1, are spread evenly, however many devices there are.
_GOLDEN = (5**0.5 - 1) / 2


class LargestUnits(MaskPolicy):
    """Keep the units of the largest L1 norms, fewer on slower devices.

    The rates are those of `GradedRate`. Of units with equal norms the first ones stay.
    """

    def __init__(self, drop_rate: float) -> None:
        self._drop_rate = GradedRate(drop_rate)

    def choose(self, context: MaskContext) -> Keep:
        """Keep the largest units of every group."""
        rate = self._drop_rate.of(context.rank, context.num_ranks)
        kept = []
        for group, norms in zip(context.groups, context.norms, strict=True):
            width = group.size - rate.dropped(group.size, group.least)
            order = torch.argsort(norms.cpu(), descending=True, stable=True)
            kept.append(order[:width].sort().values)
        return tuple(kept)


class RestoredWindow(MaskPolicy):
    """Keep a window of units that grows to all of them as the run goes on.

    A device drops ``r_i max(0, 1 - p / e)`` when a share ``p`` of the run is over, with
    the rates ``r_i`` of `GradedRate`; from ``p = e`` on it trains the full model. Its
    window begins at a place of its own, wraps around, and is within its later ones.
    """

    def __init__(self, drop_rate: float, end: float) -> None:
        self._drop_rate = GradedRate(drop_rate)
        self._end = end

    def choose(self, context: MaskContext) -> Keep:
        """Return the window of the device, as wide as it is by now."""
        left = max(0.0, 1 - context.progress / self._end)
        first = self._drop_rate.of(context.rank, context.num_ranks)
        kept = []
        for group in context.groups:
            dropped = int(first.dropped(group.size, group.least) * left)
            start = int(context.device * _GOLDEN % 1 * group.size)
            window = (start + torch.arange(group.size - dropped)) % group.size
            kept.append(window.sort().values)
        return tuple(kept)


@dataclass(frozen=True)
class Submodels(BufferSized):
    """What the algorithms below have in common: FedBuff with submodels.

    Attributes
    ----------
    drop_rate : float
        Mean share of the units that a submodel leaves out, in [0, 0.5); the slowest
        device leaves out twice as much.
    server_lr : float
        Learning rate of the server's step, positive.
    """

    drop_rate: float = parameter(
        0.25,
        "mean share of the units that a submodel leaves out, in [0, 0.5)",
        in_interval("[0, 0.5)"),
    )
    server_lr: float = parameter(
        1.0, "learning rate of the server's step", more_than(0)
    )

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `Buffered` over those that trained a coordinate."""
        size = self.size(in_flight)
        combine = combiner("mean", size, normaliser="counts")
        return Buffered(size, combine=combine, server_lr=self.server_lr)


@dataclass(frozen=True)
class Fiarse(Submodels):
    """After FIARSE (arXiv 2407.19389): the largest units, whole ones."""

    def masks(self) -> MaskPolicy:
        """Return `LargestUnits`."""
        return LargestUnits(self.drop_rate)


@dataclass(frozen=True)
class FedGmr(Submodels):
    """After FedGMR (arXiv 2512.05372): submodels grow during the run.

    Attributes
    ----------
    restored_at : float
        Share of the run after which every device trains the full model, in (0, 1].
    """

    restored_at: float = parameter(
        1.0,
        "share of the run after which submodels are the full model, in (0, 1]",
        in_interval("(0, 1]"),
    )

    def masks(self) -> MaskPolicy:
        """Return `RestoredWindow`."""
        return RestoredWindow(self.drop_rate, self.restored_at)
