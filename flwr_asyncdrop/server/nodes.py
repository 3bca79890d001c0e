"""Which SuperNodes are connected."""

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from flwr_asyncdrop.exceptions import RunError

_POLL = 0.5


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
        self._has_all_nodes = bool(getattr(grid, "has_all_nodes", False))

    def ids(self) -> list[int]:
        """Return the ids of the nodes that are connected now, ascending."""
        return sorted(self._grid.get_node_ids())

    def wait_for(self, count: int, patience: float) -> list[int]:
        """Wait until at least `count` nodes are connected and no more are coming.

        Flower's simulation engine starts the ServerApp before it has registered all
        of its nodes, so they must be as many as at the look before. A grid that says
        that its nodes are all there, by ``has_all_nodes``, is not asked again.

        Parameters
        ----------
        count : int
            Nodes wanted, at least 1.
        patience : float
            Seconds of real time to wait for them.

        Returns
        -------
        list of int
            Their ids, ascending.

        Raises
        ------
        RunError
            If fewer are there when the time is up.
        """
        deadline = self._timer() + patience
        nodes = self.ids()
        before = len(nodes) if self._has_all_nodes else -1
        while len(nodes) < count or len(nodes) != before:
            if self._timer() >= deadline:
                if len(nodes) >= count:
                    break
                raise RunError(
                    f"{len(nodes)} of {count} nodes connected within {patience:g} s: "
                    "start more SuperNodes, lower min_available_nodes, or raise the "
                    "timeout"
                )
            self._sleep(min(_POLL, patience))
            before, nodes = len(nodes), self.ids()
        return nodes

    def watch(self, enough: Callable[[list[int]], bool], patience: float) -> bool:
        """Wait until the nodes that are connected will do.

        Parameters
        ----------
        enough : callable
            From the ids of the nodes, ascending, to whether they will do.
        patience : float
            Seconds of real time to wait.

        Returns
        -------
        bool
            Whether they did in time.
        """
        deadline = self._timer() + patience
        while not enough(self.ids()):
            left = deadline - self._timer()
            if left <= 0:
                return False
            self._sleep(min(_POLL, left))
        return True
