"""Which SuperNodes are connected."""

import logging
import time
from collections.abc import Callable

from flwr.serverapp import Grid

from flwr_asyncdrop.exceptions import GridError, GridLostError, RunError
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.steady_grid import SteadyGrid

logger = logging.getLogger("flwr.asyncdrop")

_POLL = 0.5
_SILENT = 5.0  # seconds of a wait before it is told of
_PAUSE = 20  # times as long as a look
_LONGEST_PAUSE = 10.0  # a look may have waited for a grid that was gone


class Nodes:
    """The nodes that Flower's grid sees, which come and go.

    While the grid fails they are those that it saw last.
    """

    def __init__(
        self,
        grid: Grid,
        *,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid = SteadyGrid.of(grid, timer=timer, sleep=sleep)
        self._timer = timer
        self._sleep = sleep
        self._has_all_nodes = bool(getattr(grid, "has_all_nodes", False))
        # As the grid named them, and in their order: mostly nothing has changed.
        self._named: list[int] = []
        self._ids: tuple[int, ...] = ()
        self._look_again_at = 0.0

    def ids(self, *, recent: bool = False) -> tuple[int, ...]:
        """Return the ids of the nodes that are connected now, ascending.

        The same tuple as before if nothing has changed. A grid with ``has_all_nodes``
        is asked once. With `recent` it may be what was seen up to 20 times as long ago
        as it took to look, and at most 10 s ago, so that looking takes little of the
        time. GridError if the grid fails and has never named any.
        """
        began = self._timer()
        known = self._has_all_nodes or (recent and began < self._look_again_at)
        if not (known and self._ids):
            named = self._grid.get_node_ids()
            if named != self._named:
                self._named, self._ids = named, tuple(sorted(named))
            ended = self._timer()
            pause = min(_PAUSE * (ended - began), _LONGEST_PAUSE)
            self._look_again_at = ended + pause
        return self._ids

    def wait_for(
        self, count: int, patience: float, fix: str = "lower min_available_nodes"
    ) -> list[int]:
        """Return the ids of at least `count` nodes, ascending, once no more are coming.

        Flower's simulation engine starts the ServerApp before it has registered all of
        its nodes, so two looks in a row must find equally many; a grid with
        ``has_all_nodes`` is not asked again. RunError if fewer are there after
        `patience` real seconds; it names a `fix` beside more nodes and more time.
        The log says before that the run waits.
        """
        start = self._timer()
        deadline, told = start + patience, False
        nodes, failure = self._look()
        before = len(nodes) if self._has_all_nodes else -1
        while len(nodes) < count or len(nodes) != before:
            if self._timer() >= deadline:
                if len(nodes) >= count:
                    break
                why = f" ({failure})" if failure else ""
                raise RunError(
                    f"{len(nodes)} of {count} nodes connected within {patience:g} s"
                    f"{why}: start more SuperNodes, {fix}, or raise the timeout"
                )
            if not told and len(nodes) < count and self._timer() >= start + _SILENT:
                told = True
                logger.warning(
                    "waiting for %s, for up to %g s (%d connected): "
                    "simulate more with --federation-config 'num-supernodes=%d', or "
                    "start more SuperNodes",
                    counted(count, "node"),
                    patience,
                    len(nodes),
                    count,
                )
            self._sleep(min(_POLL, patience))
            before = len(nodes)
            nodes, failure = self._look()
        return nodes

    def watch(self, enough: Callable[[list[int]], bool], patience: float) -> bool:
        """Wait until `enough` accepts the ids of the connected nodes.

        Return whether it did within `patience` real seconds.
        """
        deadline = self._timer() + patience
        while not enough(self._look()[0]):
            left = deadline - self._timer()
            if left <= 0:
                return False
            self._sleep(min(_POLL, left))
        return True

    def _look(self) -> tuple[list[int], str]:
        """Return the nodes, or none and why."""
        try:
            return list(self.ids()), ""
        except GridLostError:
            raise
        except GridError as error:
            return [], str(error)
