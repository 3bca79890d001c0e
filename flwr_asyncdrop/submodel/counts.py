"""How many units of each group go, so that the drop rate holds over many tasks."""

import math
from collections.abc import Sequence

from flwr_asyncdrop.submodel.plan import UnitGroup


class DropCounts:
    """How many units of each group to drop: the rate's share, rounded by one draw.

    A group whose share is no whole number drops one of the two counts around it, and
    the share in expectation. One draw rounds all groups (systematic sampling): the
    fractions add up from group to group, and a group drops the larger count where the
    sum passes the draw plus an integer. So a submodel's total differs by less than one
    rounding from its expectation, and tasks have few different shapes: at most one more
    than there are groups to round.

    Parameters
    ----------
    groups : sequence of UnitGroup
        Each keeps its `least` units, and one.
    rate : float
        The share to drop, in [0, 1).
    round_to : int
        Widths are multiples of it, or whole, in groups that have as many units.
    """

    def __init__(
        self, groups: Sequence[UnitGroup], rate: float, round_to: int = 1
    ) -> None:
        self._around = [_around(group, rate, round_to) for group in groups]

    @property
    def are_whole(self) -> bool:
        """Whether every share is a whole number, so that no draw matters."""
        return all(share == 0 for _, _, share in self._around)

    def of(self, draw: float) -> tuple[int, ...]:
        """Return the counts for a `draw` in [0, 1), uniform from task to task."""
        counts = []
        total = draw
        for fewer, more, share in self._around:
            passed = math.floor(total + share) > math.floor(total)
            total += share
            counts.append(more if passed else fewer)
        return tuple(counts)


def share_of(size: int, rate: float) -> float:
    """Return ``size * rate``, without the rounding error of a whole number."""
    share = size * rate
    whole = round(share)
    return float(whole) if math.isclose(share, whole, abs_tol=1e-9) else share


def _around(group: UnitGroup, rate: float, round_to: int) -> tuple[int, int, float]:
    """Return the two numbers to drop, and how often it is the larger one."""
    size, least = group.size, min(max(group.least, 1), group.size)
    if rate == 0:
        return 0, 0, 0.0
    kept = size - share_of(size, rate)
    step = round_to if size >= round_to else 1
    narrow = max(math.floor(kept / step), math.ceil(least / step)) * step
    narrow = min(narrow, size)
    wide = min(narrow + step, size)
    if kept <= narrow:
        return size - narrow, size - narrow, 0.0
    return size - wide, size - narrow, (wide - kept) / (wide - narrow)
