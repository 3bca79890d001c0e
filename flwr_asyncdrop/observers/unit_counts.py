"""How often each speed rank has trained each unit of the model."""

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import UnitGroup


class UnitCounts:
    """Counts, per unit and speed rank, the updates that trained it.

    `record` pools neighbouring units so that it gives `most_numbers` counts, and one
    more a group and rank, at the most.
    """

    def __init__(self, most_numbers: int = 100_000) -> None:
        self._most_numbers = most_numbers
        self._updates: Counter[int] = Counter()
        self._counts: defaultdict[UnitGroup, dict[int, NDArray[np.int64]]] = (
            defaultdict(dict)
        )

    def add(self, order: Order) -> None:
        """Count the update that answers `order`; full models do not count."""
        if not order.part.kept:
            return
        self._updates[order.rank] += 1
        for group, units in order.part.kept.items():
            of_rank = self._counts[group]
            if order.rank not in of_rank:
                of_rank[order.rank] = np.zeros(group.size, dtype=np.int64)
            of_rank[order.rank][units.numpy()] += 1

    def state_dict(self) -> StateDict:
        """Return a copy of what was counted."""
        counts = {
            group: {rank: torch.tensor(units) for rank, units in of_rank.items()}
            for group, of_rank in self._counts.items()
        }
        return {"updates": to_plain(self._updates), "counts": to_plain(counts)}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from there."""
        self._updates = Counter(from_plain(dict[int, int], state["updates"]))
        self._counts.clear()
        counts = from_plain(dict[UnitGroup, dict[int, Tensor]], state["counts"])
        for group, of_rank in counts.items():
            for rank, units in of_rank.items():
                self._counts[group][rank] = units.numpy().copy()

    def record(self) -> dict[str, Any] | None:
        """Return the counts as JSON values; None if no submodel was trained.

        ``ranks`` that trained and their ``updates``; ``bin``, the number of
        neighbouring units that each count sums up; and ``groups``, each with
        ``name``, ``size`` and ``counts``, a list for each of the ranks.
        """
        if not self._updates:
            return None
        ranks = sorted(self._updates)
        units = sum(group.size for group in self._counts)
        width = math.ceil(units * len(ranks) / self._most_numbers)
        return {
            "ranks": ranks,
            "updates": [self._updates[rank] for rank in ranks],
            "bin": width,
            "groups": [
                {
                    "name": group.name,
                    "size": group.size,
                    "counts": [_pooled(of_rank[rank], width) for rank in ranks],
                }
                for group, of_rank in self._counts.items()
            ],
        }


def _pooled(counts: NDArray[np.int64], width: int) -> list[int]:
    """Return the sums of `width` neighbours; the last sum may be of fewer."""
    starts = np.arange(0, len(counts), width)
    sums: list[int] = np.add.reduceat(counts, starts).tolist()
    return sums
