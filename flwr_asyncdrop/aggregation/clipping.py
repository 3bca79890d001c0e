"""Clipping: no update moves further than a given distance from what was sent."""

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.changes import as_real, is_weight, wide
from flwr_asyncdrop.parameters import more_than
from flwr_asyncdrop.state_dict import StateDict, load_saved, state_to_save
from flwr_asyncdrop.submodel import State, check_fits


@torch.no_grad()
def clip_update(update: Update, norm: float) -> Update:
    """Scale the change of an update down to an L2 norm.

    ``W_i <- W_sent + Delta_i min(1, C / ||Delta_i||)`` with the change ``Delta_i = W_i
    - W_sent`` of all weights together, and `norm` for ``C``. Counters and running
    statistics stay as they are. An update within the norm is returned itself.
    """
    sent = update.sent
    changes = {
        name: wide(tensor) - wide(sent[name])
        for name, tensor in update.arrays.items()
        if is_weight(name, tensor)
    }
    length = sum(_squared_length(change) for change in changes.values()) ** 0.5
    if length <= norm:
        return update
    clipped = {
        name: torch.add(wide(sent[name]), change, alpha=norm / length).to(
            sent[name].dtype
        )
        for name, change in changes.items()
    }
    return replace(update, arrays={**update.arrays, **clipped})


class Clipped(Aggregator):
    """Clips every update to a `norm`, more than 0, before `aggregator` merges it."""

    needs_base: ClassVar[bool] = True

    def __init__(self, aggregator: Aggregator, norm: float) -> None:
        self.norm: float = more_than(0).check("clip_norm", norm)
        self.clipped = aggregator
        self._follow()

    def extra(self, state: State) -> Mapping[str, State]:
        """Return that of the clipped aggregator."""
        return self.clipped.extra(state)

    def state_dict(self) -> StateDict:
        """Return that of the clipped aggregator."""
        return state_to_save(self.clipped)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the clipped aggregator."""
        load_saved(self.clipped, state)
        self._follow()

    def merge(self, state: State, update: Update) -> bool:
        """Clip the update, then merge it."""
        check_fits(state, update.arrays, update.indices)
        changed = self.clipped.merge(state, clip_update(update, self.norm))
        self._follow()
        return changed

    def releases(self, rank: int, num_ranks: int) -> bool:
        """Let those go on that the clipped aggregator lets."""
        return self.clipped.releases(rank, num_ranks)

    def metrics(self) -> Mapping[str, float]:
        """Return the numbers of the clipped aggregator."""
        return self.clipped.metrics()

    def flush(self, state: State) -> bool:
        """Have the clipped aggregator take its step."""
        changed = self.clipped.flush(state)
        self._follow()
        return changed

    def _follow(self) -> None:
        """Wait, and step, as the clipped aggregator does, which may change its mind."""
        followed = self.clipped
        self.waits_for = followed.waits_for
        self.wait_limit = followed.wait_limit
        self.updates_per_version = followed.updates_per_version
        self.steps_at = followed.steps_at
        self.collects = followed.collects


def _squared_length(change: Tensor) -> float:
    # In a precision in which it does not overflow.
    return float(torch.linalg.vector_norm(as_real(change), dtype=torch.float64)) ** 2
