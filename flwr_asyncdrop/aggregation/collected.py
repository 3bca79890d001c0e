"""What a buffer keeps of updates until the server steps: their changes, or a sum."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.changes import (
    Change,
    Mean,
    Normaliser,
    change_of,
    held,
    is_weight,
    mean_or,
    real_part,
    wide,
)
from flwr_asyncdrop.aggregation.combining import Combiner
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import Indices, State, add_
from flwr_asyncdrop.submodel.types import is_inexact

_WHOLE: Mapping[int, Tensor] = {}


class Collected(ABC):
    """Updates that wait for the next step of the server.

    Attributes
    ----------
    models : int
        How many times the memory of the model it takes at the most.
    """

    models: int

    @abstractmethod
    def add(self, state: State, update: Update, weight: float) -> None:
        """Take an update in; `state` is the global model, which is only read."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many updates there are."""

    @abstractmethod
    def take(self, state: State) -> State:
        """Return the change that they make together, and begin anew."""

    @abstractmethod
    def state_dict(self) -> StateDict:
        """Return what there is."""

    @abstractmethod
    def load_state_dict(self, state: StateDict) -> None:
        """Restore it."""


def collected(size: int, combine: Combiner, *, waits: bool) -> Collected:
    """Return what keeps `size` updates for a step, with as little memory as it can.

    A mean is summed up as updates come, where the share of each is known by then. It is
    not if they are weighed by examples, or if a step may come sooner (`waits`).
    """
    if type(combine) is Mean:  # and no subclass, which may combine otherwise
        at_once = {"size": not waits, "counts": True, "examples": False}
        if at_once[combine.normaliser]:
            return Summed(size, combine.normaliser)
    return Changes(size, combine)


class Changes(Collected):
    """The changes one by one, for any `combine`."""

    def __init__(self, size: int, combine: Combiner) -> None:
        self.models = size
        self._combine = combine
        self._changes: list[Change] = []

    def add(self, state: State, update: Update, weight: float) -> None:
        """Keep the change of an update."""
        self._changes.append(change_of(update, weight))

    def __len__(self) -> int:
        """Return the number of changes."""
        return len(self._changes)

    def take(self, state: State) -> State:
        """Combine them."""
        combined = self._combine(state, self._changes)
        self._changes.clear()
        return combined

    def state_dict(self) -> StateDict:
        """Return the changes."""
        return {"changes": to_plain(self._changes)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore them."""
        self._changes = from_plain(list[Change], state["changes"])


@dataclass
class _Sum:
    """The sum of a tensor over updates: changes, new values, or the largest ones."""

    total: Tensor
    whole: int = 0  # updates that have all of the tensor
    # How many have each coordinate, beside those, broadcastable to `total`; None while
    # all have all.
    counts: Tensor | None = None

    def copy(self) -> Self:
        """Return another one, as totals change in place; counts do not."""
        return replace(self, total=self.total.clone())

    def number(self) -> Tensor:
        """Return how many updates have each coordinate, broadcastable to `total`."""
        if self.counts is None:
            return real_part(self.total).new_tensor(self.whole)
        return self.counts + self.whole


class Summed(Collected):
    """The sum of `mean_change`, term by term in the order of arrival: the same bits.

    `size` updates take the memory of one model, and of two where coordinates are
    counted.
    """

    def __init__(self, size: int, normaliser: Normaliser) -> None:
        self.models = 2 if normaliser == "counts" else 1
        self._size = size
        self._normaliser = normaliser
        self._count = 0
        self._sums: dict[str, _Sum] = {}
        # Of a checkpoint of versions before this one, which kept the changes.
        self._changes: list[Change] = []

    @torch.no_grad()
    def add(self, state: State, update: Update, weight: float) -> None:
        """Add the change of an update, one tensor at a time."""
        self._add_changes(state)
        base = update.sent
        for name, tensor in update.arrays.items():
            moves = is_weight(name, tensor)
            delta = tensor - base[name] if moves else tensor
            self._add(state, name, delta, update.indices, weight)
        self._count += 1

    def __len__(self) -> int:
        """Return the number of updates."""
        return self._count + len(self._changes)

    @torch.no_grad()
    def take(self, state: State) -> State:
        """Return the mean."""
        self._add_changes(state)
        mean = {name: self._mean(name, tensor) for name, tensor in state.items()}
        self._sums, self._count = {}, 0
        return mean

    def state_dict(self) -> StateDict:
        """Return a copy of the sums."""
        sums = {name: each.copy() for name, each in self._sums.items()}
        return {
            "changes": to_plain(self._changes),
            "sums": to_plain(sums),
            "count": self._count,
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore them; a checkpoint of before has changes, and no sums."""
        self._changes = from_plain(list[Change], state["changes"])
        sums = from_plain(dict[str, _Sum], state.get("sums", {}))
        self._sums = {name: each.copy() for name, each in sums.items()}
        self._count = state.get("count", 0)

    def _add_changes(self, state: State) -> None:
        for change in self._changes:
            for name, delta in change.delta.items():
                self._add(state, name, delta, change.indices, change.weight)
            self._count += 1
        self._changes = []

    def _add(
        self, state: State, name: str, delta: Tensor, indices: Indices, weight: float
    ) -> None:
        tensor, dims = state[name], indices.get(name, _WHOLE)
        if not is_inexact(tensor):
            # Counters have no units of their own; a plan never narrows them.
            if not dims:
                self._keep_largest(name, delta.to(tensor.device))
            return
        moves = is_weight(name, tensor)
        if name not in self._sums:
            self._sums[name] = _Sum(torch.zeros_like(wide(tensor)))
        one = self._sums[name]
        size = self._normaliser == "size"
        share = (weight * (1 / self._size) if size else weight) if moves else 1.0
        add_(one.total, delta.to(one.total), dims, share)
        if not dims:
            one.whole += 1
        elif not (moves and size):
            own = held(tensor, dims)
            one.counts = own if one.counts is None else one.counts + own

    def _keep_largest(self, name: str, values: Tensor) -> None:
        if name not in self._sums:
            self._sums[name] = _Sum(values.clone())
        else:
            total = self._sums[name].total
            torch.maximum(total, values, out=total)

    def _mean(self, name: str, tensor: Tensor) -> Tensor:
        if name not in self._sums:  # a counter that nobody has sent whole
            return tensor.clone()
        one = self._sums[name]
        if not is_inexact(tensor):
            return torch.maximum(tensor, one.total)
        if not is_weight(name, tensor):
            return mean_or(tensor, one.total, one.number())
        if self._normaliser == "counts":
            one.total.div_(one.number().clamp_(min=1))
        return one.total.to(tensor.dtype)
