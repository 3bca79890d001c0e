"""Orders for tests of observers."""

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.order import Order, Part, Timing

__all__ = ["order_of"]


def order_of(
    rank=3, num_ranks=8, *, device=17, dispatched_at=0.0, kept=None, cost=None
):
    """Return the order of a task that takes a second."""
    return Order(
        number=0,
        device=device,
        node_id=10 * device,
        rank=rank,
        num_ranks=num_ranks,
        round=1,
        base_version=0,
        lr_factor=1.0,
        part=Part(None, {}, {}, kept=kept or {}),
        cost=cost or TaskCost(1.0, 0, 0),
        timing=Timing(dispatched_at, due=dispatched_at + 1.0),
    )
