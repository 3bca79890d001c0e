"""Tasks that came back from a dead worker of Flower's simulation, not from a device.

When a machine of a Ray cluster is gone, Flower goes on to give tasks to the worker that
it had. Each comes back at once as failed, so that such a worker gets most of the tasks:
all of them, if they are sent one by one, as Flower takes the worker that was free last.
"""

import logging
import time
from collections.abc import Callable

from flwr.app import Message

from flwr_asyncdrop.exceptions import GridLostError
from flwr_asyncdrop.flower_internals.ray_workers import death_of_worker
from flwr_asyncdrop.readable import printable

logger = logging.getLogger("flwr.asyncdrop")

_SECONDS = 30.0  # after which waiting does not help: workers do not come back
_ADVICE = "docs/flwr-run-on-a-cluster.md"


class DeadWorkers:
    """Recognises replies of dead workers, and ends a run in which nothing else comes.

    Parameters
    ----------
    possible : bool
        Whether the grid is that of Flower's simulation. Elsewhere a device could claim
        that its failures are its machine's, and none of its replies is believed.
    patience : float
        Real seconds that only such replies may come in, at most 30.
    timer : callable
        Source of monotonic seconds.

    Attributes
    ----------
    count : int
        Such replies so far.
    """

    def __init__(
        self,
        possible: bool,
        patience: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.count = 0
        self._possible = possible
        self._patience = min(patience, _SECONDS)
        self._timer = timer
        self._since: float | None = None

    def answered(self, message: Message | None) -> bool:
        """Return whether a dead worker has answered in place of a device.

        GridLostError if nothing else has come in for the patience.
        """
        if message is None or not self._possible:
            return False
        reason = death_of_worker(message)
        if reason is None:
            self._since = None
            return False
        self.count += 1
        said = printable(reason, 200)
        if self.count == 1:
            logger.warning(
                "a worker of Flower's simulation has died, with its machine or by "
                "itself (%s): its tasks are sent again, and no device is blamed; see "
                "%s",
                said,
                _ADVICE,
            )
        now = self._timer()
        if self._since is None:
            self._since = now
        if now - self._since >= self._patience:
            raise GridLostError(
                f"for {self._patience:g} s every task came back from a dead worker of "
                f"Flower's simulation ({said}): see to its machines, and resume the "
                f"run ({_ADVICE})"
            )
        return True
