"""Union-find over unit ids, on whole arrays at a time."""

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

_NO_REASON = np.iinfo(np.int64).max


class UnionFind:
    """Classes of unit ids that are dropped together; id 0 is what is always kept.

    A class may be frozen, with its first reason, and marked as carried by a residual
    stream, as normalised together, as competing with others of which so many must be
    there, or as chosen by number. Joining two classes joins these marks too.

    Attributes
    ----------
    changes : int
        How often classes have been joined or frozen. While it stays, so does all that
        `droppable` returns.
    """

    def __init__(self) -> None:
        self._parent: Ids = np.zeros(1, np.int64)
        self._reason: Ids = np.array([_NO_REASON], np.int64)
        self._residual = np.zeros(1, np.bool_)
        self._normalised = np.zeros(1, np.bool_)
        self._chosen = np.zeros(1, np.bool_)
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
        self._residual = np.concatenate([self._residual, np.zeros(count, np.bool_)])
        self._normalised = np.concatenate([self._normalised, np.zeros(count, np.bool_)])
        self._chosen = np.concatenate([self._chosen, np.zeros(count, np.bool_)])
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
        np.logical_or.at(self._residual, merged, self._residual[touched])
        np.logical_or.at(self._normalised, merged, self._normalised[touched])
        np.logical_or.at(self._chosen, merged, self._chosen[touched])
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

    def mark_residual(self, ids: Ids) -> None:
        """Mark the classes of `ids` as carried by an addition of two branches."""
        self._residual[self.roots(ids.ravel())] = True

    def residual(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which of `ids` are so marked."""
        return self._residual[self.roots(ids)]

    def mark_normalised(self, ids: Ids) -> None:
        """Mark the classes of `ids` as normalised together with others."""
        self._normalised[self.roots(ids.ravel())] = True

    def normalised(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which of `ids` are so marked."""
        return self._normalised[self.roots(ids)]

    def mark_competing(self, ids: Ids, least: int) -> None:
        """Mark the classes of `ids` as competing; at least `least` of them must be."""
        np.maximum.at(self._least, self.roots(ids.ravel()), least)

    def least(self, ids: Ids) -> Ids:
        """Return how many must be there of those that each of `ids` competes with.

        0 for what does not compete.
        """
        return self._least[self.roots(ids)]

    def mark_chosen(self, ids: Ids) -> None:
        """Mark the classes of `ids` as those that a choice by number takes."""
        self._chosen[self.roots(ids.ravel())] = True

    def chosen(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which of `ids` are so marked."""
        return self._chosen[self.roots(ids)]
