"""Speed ranks in so few groups that a person can look at all of them."""

from flwr_asyncdrop.server.state import Order


def speed_group(order: Order, most: int) -> int:
    """Return the speed tier of the device that an order went to; 0 is the fastest.

    With up to `most` ranks a tier is a rank; with more of them, a tier is a group of
    neighbouring ones, and there are `most` tiers.

    Parameters
    ----------
    order : Order
        The order.
    most : int
        Tiers that there are at most.
    """
    return order.rank * min(most, order.num_ranks) // order.num_ranks
