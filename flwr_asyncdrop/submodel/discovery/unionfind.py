"""Union-find over unit ids, on whole arrays at a time."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

Mark = Literal["residual", "normalised", "chosen"]
"""What a class of units may be: carried by an addition of two branches, normalised
together with others, or taken by a choice by number."""

_NO_REASON = np.iinfo(np.int64).max


class UnionFind:
    """Classes of unit ids that are dropped together; id 0 is what is always kept.

    A class may be frozen, with its first reason, have marks, and compete with others of
    which so many must be there. Joining two classes joins all of that, too.

    Attributes
    ----------
    changes : int
        How often classes have been joined or frozen. While it stays, so does all that
        `droppable` returns.
    """

    def __init__(self) -> None:
        self._parent: Ids = np.zeros(1, np.int64)
        self._reason: Ids = np.array([_NO_REASON], np.int64)
        self._marks = {mark: np.zeros(1, np.bool_) for mark in get_args(Mark)}
        self._least = np.zeros(1, np.int64)
        self._reasons: list[str] = []
        self.changes = 0

    def __len__(self) -> int:
        return len(self._parent)

    def new(self, count: int) -> Ids:
        """Return `count` fresh ids, each a class of its own."""
        first = len(self._parent)
        ids = np.arange(first, first + count)
        self._parent = np.concatenate([self._parent, ids])
        self._reason = np.concatenate([self._reason, np.full(count, _NO_REASON)])
        for mark, known in self._marks.items():
            self._marks[mark] = np.concatenate([known, np.zeros(count, np.bool_)])
        self._least = np.concatenate([self._least, np.zeros(count, np.int64)])
        return ids

    def roots(self, ids: Ids) -> Ids:
        """Return the representative of each id's class, the smallest id in it."""
        while True:
            above = self._parent[ids]
            if np.array_equal(above, ids):
                return ids
            self._parent[ids] = self._parent[above]
            ids = above

    def droppable(self, ids: Ids) -> Ids:
        """Return the representatives, with 0 for what is frozen."""
        roots = self.roots(ids)
        return np.where(self._reason[roots] == _NO_REASON, roots, 0)

    def union(self, left: Ids, right: Ids, reason: str) -> None:
        """Join the classes of `left` and `right`, broadcast against each other.

        Joining with id 0 freezes the other side for `reason`.
        """
        left, right = (side.ravel() for side in np.broadcast_arrays(left, right))
        left, right = self.roots(left), self.roots(right)
        differ = left != right
        left, right = left[differ], right[differ]
        if not left.size:
            return
        self.changes += 1
        kept = (left == 0) | (right == 0)
        if kept.any():
            self.freeze(np.maximum(left, right)[kept], reason)
            left, right = left[~kept], right[~kept]
        touched = np.unique(np.concatenate([left, right]))
        self._join(left, right)
        merged = self.roots(touched)
        np.minimum.at(self._reason, merged, self._reason[touched])
        for known in self._marks.values():
            np.logical_or.at(known, merged, known[touched])
        np.maximum.at(self._least, merged, self._least[touched])

    def _join(self, left: Ids, right: Ids) -> None:
        while True:
            left, right = self.roots(left), self.roots(right)
            differ = left != right
            if not differ.any():
                return
            left, right = left[differ], right[differ]
            low, high = np.minimum(left, right), np.maximum(left, right)
            np.minimum.at(self._parent, high, low)

    def freeze(self, ids: Ids, reason: str) -> None:
        """Make the classes of `ids` undroppable, for `reason` if it is the first."""
        roots = np.unique(self.roots(ids.ravel()))
        roots = roots[(roots != 0) & (self._reason[roots] == _NO_REASON)]
        if roots.size:
            self.changes += 1
            self._reason[roots] = len(self._reasons)
            self._reasons.append(reason)

    def reason(self, unit: int) -> str | None:
        """Return why `unit` is frozen, None while it is not."""
        number = int(self._reason[self.roots(np.array([unit]))[0]])
        return None if number == _NO_REASON else self._reasons[number]

    def mark(self, ids: Ids, mark: Mark) -> None:
        """Mark the classes of `ids`."""
        self._marks[mark][self.roots(ids.ravel())] = True

    def marked(self, ids: Ids, mark: Mark) -> NDArray[np.bool_]:
        """Return which of `ids` have a mark."""
        found: NDArray[np.bool_] = self._marks[mark][self.roots(ids)]
        return found

    def mark_competing(self, ids: Ids, least: int) -> None:
        """Mark the classes of `ids` as competing; at least `least` of them must be."""
        np.maximum.at(self._least, self.roots(ids.ravel()), least)

    def least(self, ids: Ids) -> Ids:
        """Return how many must be there of those that each of `ids` competes with.

        0 for what does not compete.
        """
        return self._least[self.roots(ids)]
