"""Books of a run that a callback keeps: who left, who came back, what is finite."""

import json
from pathlib import Path

import torch

from flwr_asyncdrop.server.callbacks import Callback, Merged
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

__all__ = ["Books"]

_SLACK = 10.0  # seconds for which a grid may be busy


class Books(Callback):
    """Follows every order to its end, and the model after every merge.

    Parameters
    ----------
    path : Path
        Where the books are written when the run ends.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open: set[int] = set()
        self._non_finite = 0

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Note an order that has left."""
        self._open.add(order.number)

    def on_update(self, state: RunState, merged: Merged) -> None:
        """Note an order that has ended well, and look at the model."""
        self._open.discard(merged.order.number)
        self._non_finite += sum(
            int((~torch.isfinite(tensor)).sum()) for tensor in state.arrays.values()
        )

    def on_failure(self, state: RunState, order: Order, kind: str, reason: str) -> None:
        """Note an order that has failed."""
        self._open.discard(order.number)

    def on_end(self, state: RunState) -> None:
        """Write the books.

        The run may end while tasks are out: one that was late has been merged in
        their place. They must all be there, and not have been forgotten.
        """
        in_flight, late = state.in_flight.values(), state.late.values()
        out = {order.number for order in [*in_flight, *late]}
        books = {
            "updates": state.updates,
            "failures": state.failures,
            "never_ended": len(self._open - out),
            "forgotten": sum(
                order.timing.deadline + _SLACK < state.time for order in in_flight
            )
            + sum(o.timing.gives_up + _SLACK < state.time for o in late),
            "non_finite": self._non_finite,
        }
        self._path.write_text(json.dumps(books))
