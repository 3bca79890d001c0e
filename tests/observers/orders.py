"""Orders, and beginnings of runs, for tests of observers."""

from flwr_asyncdrop.fleet.profiles import TaskCost
from flwr_asyncdrop.server.order import Order, Part, Timing

__all__ = ["begin", "order_of", "resume"]


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


def begin(callback, run):
    """Let a run begin, which nobody refuses."""
    callback.on_start(run)
    callback.on_begin(run)


def resume(callback, run):
    """Let a run resume, which nobody refuses."""
    callback.on_resume(run)
    callback.on_begin(run)
