"""Speed ranks in so few groups that a person can look at all of them."""

from flwr_asyncdrop.server.order import Order

MOST_GROUPS = 16
"""Speed groups that a monitor shows at the most."""


def speed_group(order: Order, most: int) -> int:
    """Return the speed group of the device that an order went to; 0 is the fastest."""
    return group_of_rank(order.rank, order.num_ranks, most)


def group_of_rank(rank: int, num_ranks: int, most: int) -> int:
    """Return the speed group of a speed rank.

    With up to `most` ranks a group is a rank; with more of them it is a set of
    neighbouring ones, and there are `most` groups.
    """
    return rank * min(most, num_ranks) // num_ranks
