"""Which SuperNodes are connected."""

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from flwr_asyncdrop.exceptions import RunError

__all__ = ["Nodes"]

_POLL = 1.0


class Nodes:
    """The nodes that Flower's grid sees, which come and go.

    Parameters
    ----------
    grid : Grid
        Flower's grid.
    timer, sleep : callable
        Source of monotonic seconds, and the pause; replaced in tests.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = grid
        self._timer = timer
        self._sleep = sleep

    def ids(self) -> list[int]:
        """Return the ids of the nodes that are connected now, ascending."""
        return sorted(self._grid.get_node_ids())

    def wait_for(self, count: int, patience: float) -> None:
        """Wait until at least `count` nodes are connected.

        Raises
        ------
        RunError
            If they are not within `patience` seconds of real time.
        """
        deadline = self._timer() + patience
        while (connected := len(self.ids())) < count:
            if self._timer() >= deadline:
                raise RunError(
                    f"{connected} of {count} nodes connected within {patience:g} s: "
                    "start more SuperNodes, lower min_available_nodes, or raise the "
                    "timeout"
                )
            self._sleep(min(_POLL, patience))
