"""What a mask policy is: it names the units that a device's submodel keeps."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import Keep, UnitGroup

__all__ = ["FullMask", "MaskPolicy", "checked_rate"]


class MaskPolicy(ABC):
    """Chooses the units that a device trains; one per algorithm.

    Attributes
    ----------
    needs_scores : bool
        Whether :meth:`assign` wants the units' scores, which cost a pass over the
        model.
    """

    needs_scores: ClassVar[bool] = False

    @abstractmethod
    def assign(
        self,
        groups: Sequence[UnitGroup],
        scores: Sequence[Tensor] | None,
        rank: int,
        num_ranks: int,
        generator: torch.Generator,
    ) -> Keep:
        """Choose the units to keep.

        Parameters
        ----------
        groups : sequence of UnitGroup
            The groups of the plan.
        scores : sequence of Tensor or None
            Per group one score a unit, as from ``unit_scores``; may be None if
            `needs_scores` is False.
        rank, num_ranks : int
            The device's place among the speed ranks, ``0 <= rank < num_ranks``; 0 is
            the fastest.
        generator : torch.Generator
            The only source of randomness: equal seeds give equal masks.

        Returns
        -------
        tuple of Tensor
            Per group the kept unit numbers: int64, ascending, at least one.
        """


class FullMask(MaskPolicy):
    """Every device trains every unit (Algorithm 1)."""

    def assign(
        self,
        groups: Sequence[UnitGroup],
        scores: Sequence[Tensor] | None,
        rank: int,
        num_ranks: int,
        generator: torch.Generator,
    ) -> Keep:
        """Keep all units."""
        return tuple(torch.arange(group.size) for group in groups)


def checked_rate(drop_rate: float) -> float:
    """Return `drop_rate`, the share of units to drop, if it lies in [0, 1).

    Raises
    ------
    ConfigError
        If it does not.
    """
    if not 0 <= drop_rate < 1:
        raise ConfigError(
            f"drop rate {drop_rate!r} is not in [0, 1): 0.25 drops a quarter of the "
            "units, 0 none"
        )
    return drop_rate
