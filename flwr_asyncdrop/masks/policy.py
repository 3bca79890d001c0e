"""The base class of mask policies, which choose the units of a device's submodel."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import A_SWITCH, at_least
from flwr_asyncdrop.state_dict import Stateless
from flwr_asyncdrop.submodel import Keep, UnitGroup

_ATTRIBUTES = {
    "score_vectors": A_SWITCH,
    "least_saving": at_least(0),
    "is_full": A_SWITCH,
}


@dataclass(frozen=True)
class MaskContext:
    """What a mask policy may go by.

    Attributes
    ----------
    groups : sequence of UnitGroup
        The groups of the plan.
    rank, num_ranks : int
        The device's place among the speed ranks, ``0 <= rank < num_ranks``; 0 is the
        fastest.
    generator : torch.Generator
        The only source of randomness: equal seeds give equal masks.
    device : int
        Index of the device in the fleet.
    round : int
        Round in which the task is dispatched, from 1.
    compute_scores, compute_norms : callable, optional
        Return per group one number a unit; see `scores` and `norms`.
    known_progress : float, optional
        See `progress`.
    """

    groups: Sequence[UnitGroup]
    rank: int
    num_ranks: int
    generator: torch.Generator
    device: int = 0
    round: int = 1
    compute_scores: Callable[[], Sequence[Tensor]] | None = None
    compute_norms: Callable[[], Sequence[Tensor]] | None = None
    known_progress: float | None = None

    @cached_property
    def scores(self) -> Sequence[Tensor]:
        """Per group how far each unit has moved; see `unit_scores`.

        Computed when first used, with a pass over the model. ConfigError if there is
        nothing to compute them from.
        """
        if self.compute_scores is None:
            raise ConfigError("this mask needs scores: pass compute_scores")
        return self.compute_scores()

    @cached_property
    def norms(self) -> Sequence[Tensor]:
        """Per group the L1 norm of each unit: its score, measured from zero.

        Computed when first used, with a pass over the model. ConfigError if there is
        nothing to compute them from.
        """
        if self.compute_norms is None:
            raise ConfigError("this mask needs norms: pass compute_norms")
        return self.compute_norms()

    @property
    def progress(self) -> float:
        """How much of the run is over when the task is dispatched, in [0, 1].

        The share of its updates that are merged, or of `max_seconds` on its clock if
        that is more. ConfigError where nobody knows how long the run is, as in rounds
        that somebody else drives.
        """
        if self.known_progress is None:
            raise ConfigError(
                "this mask needs to know how far the run is, and rounds that are "
                "driven from outside do not say how many there will be: run it with "
                "the strategy's own start(num_rounds=...)"
            )
        return self.known_progress


class MaskPolicy(Stateless, ABC):
    """Chooses the units that a device trains.

    A policy that changes from task to task saves what changes by ``state_dict`` and
    ``load_state_dict``.

    Attributes
    ----------
    score_vectors : bool
        Whether ``context.scores`` and ``context.norms`` count biases and norm weights;
        see `unit_scores`.
    least_saving : float
        What a submodel must save to be sent, over the share of units that it leaves
        out: the larger of the shares of compute and of bytes. A device whose submodel
        saves less gets the full model.
    is_full : bool
        Whether it keeps all units of all devices: models without units that can be
        dropped are then trained whole.
    """

    score_vectors: bool = True
    least_saving: float = 0.0
    is_full: bool = False

    @abstractmethod
    def choose(self, context: MaskContext) -> Keep:
        """Choose the units to keep.

        Parameters
        ----------
        context : MaskContext
            Which device, which round, and how far the units have moved.

        Returns
        -------
        tuple of Tensor
            Per group the kept unit numbers: int64, ascending, at least one.
        """


def check_masks(masks: MaskPolicy) -> None:
    """Raise ConfigError if a policy says of itself what cannot be."""
    for name, values in _ATTRIBUTES.items():
        values.check(f"{name} of {type(masks).__name__}", getattr(masks, name))


class FullMask(MaskPolicy):
    """Every device trains every unit (Algorithm 1)."""

    is_full = True

    def choose(self, context: MaskContext) -> Keep:
        """Keep all units."""
        return tuple(torch.arange(group.size) for group in context.groups)
