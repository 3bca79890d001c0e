"""Making a submodel small enough for a device."""

from collections.abc import Callable, Sequence

import torch

from flwr_asyncdrop.exceptions import CapacityError
from flwr_asyncdrop.submodel import Keep


def fit(
    keep: Keep,
    size_of: Callable[[Keep], float],
    most: float,
    generator: torch.Generator,
    least: Sequence[int] = (),
) -> Keep:
    """Leave out more units, the same share of each group, until what is left fits.

    Returns the largest of random nested subsets whose size is at most `most`; `keep`
    itself if it fits. `size_of` must not grow when units go. `least` says how many
    units each group must keep, by default one. CapacityError if these are still too
    large.
    """
    if size_of(keep) <= most:
        return keep
    orders = [units[torch.randperm(len(units), generator=generator)] for units in keep]
    longest = max((len(units) for units in keep), default=0)
    lowest = least or [1] * len(keep)

    def subset(count: int) -> Keep:
        """Return `count` units of the largest group, and as large a share of others."""
        return tuple(
            order[: max(len(order) * count // longest, low)].sort().values
            for order, low in zip(orders, lowest, strict=True)
        )

    smallest = size_of(subset(1)) if keep else size_of(keep)
    if smallest > most:
        raise CapacityError(
            f"its smallest submodel has {smallest:,.0f} bytes, and {most:,.0f} is the "
            "most"
        )
    fits, too_large = 1, longest
    while too_large - fits > 1:
        middle = (fits + too_large) // 2
        if size_of(subset(middle)) <= most:
            fits = middle
        else:
            too_large = middle
    return subset(fits)
