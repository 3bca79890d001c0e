"""Clipping: no update moves further than a given distance from what was sent."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from typing import ClassVar

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.changes import change_of, is_weight
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.submodel import State, check_fits


@torch.no_grad()
def clip_update(update: Update, norm: float) -> Update:
    """Scale the change of an update down to an L2 norm.

    ``W_i <- W_sent + Delta_i min(1, C / ||Delta_i||)`` with the change ``Delta_i = W_i
    - W_sent`` of all weights together. Counters and running statistics stay as they
    are: they are no changes.

    Parameters
    ----------
    update : Update
        With its base; only read.
    norm : float
        ``C``, positive.

    Returns
    -------
    Update
        The very same if its change is no longer than `norm`.
    """
    weights = {
        name: delta
        for name, delta in change_of(update).delta.items()
        if is_weight(name, delta)
    }
    length = sum(_squared_length(delta) for delta in weights.values()) ** 0.5
    if length <= norm:
        return update
    clipped = {
        name: torch.add(update.sent[name], delta, alpha=norm / length)
        for name, delta in weights.items()
    }
    return replace(update, arrays={**update.arrays, **clipped})


class Clipped(Aggregator):
    """Clips every update before another aggregator takes it in.

    Parameters
    ----------
    aggregator : Aggregator
        What takes the updates in.
    norm : float
        See `clip_update`.

    Raises
    ------
    ConfigError
        If `norm` is not positive and finite.
    """

    needs_base: ClassVar[bool] = True

    def __init__(self, aggregator: Aggregator, norm: float) -> None:
        if not 0 < norm < inf:
            raise ConfigError(f"clip_norm={norm!r} must be positive and finite")
        self.norm = norm
        self.waits_for = aggregator.waits_for
        self._aggregator = aggregator

    def extra(self, state: State) -> Mapping[str, State]:
        """Return what the aggregator behind it sends along."""
        return self._aggregator.extra(state)

    def state_dict(self) -> StateDict:
        """Return that of the aggregator behind it."""
        return self._aggregator.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Have the aggregator behind it load its state."""
        self._aggregator.load_state_dict(state)

    def merge(self, state: State, update: Update) -> bool:
        """Clip the update and hand it on."""
        check_fits(state, update.arrays, update.indices)
        return self._aggregator.merge(state, clip_update(update, self.norm))


def _squared_length(delta: Tensor) -> float:
    """Return the sum of squares, in a precision in which it does not overflow."""
    numbers = torch.view_as_real(delta) if delta.is_complex() else delta
    return float(torch.linalg.vector_norm(numbers, dtype=torch.float64)) ** 2
