"""A server that collects K updates, then steps with their mean."""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from flwr_asyncdrop.aggregation import (
    Aggregator,
    Change,
    Update,
    change_of,
    is_weight,
    mean_change,
)
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State, check_fits


@dataclass
class _Waiting:
    changes: list[Change] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)


class Collecting(Aggregator):
    """Every K updates a step with their mean change ``D``.

    Of submodels with masks ``M_i`` it is ``sum_i M_i Delta_i / max(sum_i M_i, 1)``. A
    step calls `step` with it. Running statistics and counters take their new values.
    """

    needs_base: ClassVar[bool] = True

    def __init__(self, size: int, *, waits: bool = False) -> None:
        self.updates_per_version = self.collects = size
        self.waits_for = size if waits else 1
        self._waiting = _Waiting()

    @torch.no_grad()
    def merge(self, state: State, update: Update) -> bool:
        """Collect the update; with the last of K, step."""
        check_fits(state, update.arrays, update.indices)
        waiting = self._waiting
        waiting.changes.append(self.arrived(change_of(update, update.discount)))
        waiting.staleness.append(update.staleness)
        if len(waiting.changes) < self.updates_per_version:
            return False
        return self.flush(state)

    @torch.no_grad()
    def flush(self, state: State) -> bool:
        """Step with the updates that are there."""
        waiting = self._waiting
        if not waiting.changes:
            return False
        mean = mean_change(state, waiting.changes, "counts")
        weights: State = {}
        for name, tensor in state.items():
            if is_weight(name, tensor):
                weights[name] = mean[name]
            else:
                tensor.copy_(mean[name])
        self._waiting = _Waiting()
        self.step(state, weights, waiting.staleness)
        return True

    def arrived(self, change: Change) -> Change:
        """Return what is collected of a change: all of it."""
        return change

    @abstractmethod
    def step(self, state: State, mean: State, staleness: list[int]) -> None:
        """Move the weights, in place; `mean` is nobody else's."""

    def state_dict(self) -> StateDict:
        """Return what waits for the next step; the algorithm adds its own."""
        return {"waiting": to_plain(self._waiting)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore it."""
        self._waiting = from_plain(_Waiting, state["waiting"])
