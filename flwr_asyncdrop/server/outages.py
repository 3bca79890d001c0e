"""How long the calls of a grid have been failing, and what that means for the run."""

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from flwr_asyncdrop.exceptions import GridLostError
from flwr_asyncdrop.readable import one_line

logger = logging.getLogger("flwr.asyncdrop")

FIRST_PAUSE = 0.1
LONGEST_PAUSE = 5.0


@dataclass
class _Outage:
    """One call that fails: since when, and when it is tried again."""

    since: float
    pause: float
    again_at: float = 0.0


class Outages:
    """Remembers which calls fail, until they work again.

    A call is tried again after pauses of 0.1 s, 0.2 s and so on, up to 5 s. The log has
    one line when the first call fails, and one when all work again. `patience` is how
    many real seconds a call may fail before the grid counts as lost.
    """

    def __init__(self, patience: float, timer: Callable[[], float]) -> None:
        self._patience = patience
        self._timer = timer
        self._since = 0.0
        self._failing: dict[str, _Outage] = {}

    def failed(
        self, call: str, error: BaseException, began: float, *, ends_run: bool
    ) -> None:
        """Note that a call, begun at this time, has failed.

        GridLostError if it `ends_run`, and has been failing for the patience.
        """
        now = self._timer()
        if not self._failing:
            self._since = began
            logger.warning(
                "Flower's grid fails (%s: %s): its calls are tried again%s",
                call,
                one_line(error),
                f" for {self._patience:g} s" if self._patience < math.inf else "",
            )
        outage = self._failing.get(call)
        if outage is None:
            outage = self._failing[call] = _Outage(began, FIRST_PAUSE)
        else:
            outage.pause = min(2 * outage.pause, LONGEST_PAUSE)
        outage.again_at = now + outage.pause
        if not ends_run:
            return
        outage.again_at = min(outage.again_at, outage.since + self._patience)
        if now - outage.since >= self._patience:
            raise GridLostError(
                f"nothing has come through Flower's grid for {self._patience:g} s "
                f"({call}: {one_line(error)}): see to the SuperLink, or raise the "
                "timeout"
            ) from error

    def worked(self, call: str) -> None:
        """Note that a call has worked."""
        if self._failing.pop(call, None) is not None and not self._failing:
            seconds = self._timer() - self._since
            logger.warning("Flower's grid works again after %.1f s", seconds)

    def is_failing(self, call: str) -> bool:
        """Return whether a call failed the last time."""
        return call in self._failing

    def duration(self, call: str) -> float:
        """Return for how many seconds a call has been failing; 0 if it works."""
        outage = self._failing.get(call)
        return 0.0 if outage is None else self._timer() - outage.since

    def due_in(self, call: str) -> float:
        """Return in how many seconds a call may be tried; 0 if it may be now."""
        outage = self._failing.get(call)
        return 0.0 if outage is None else max(outage.again_at - self._timer(), 0.0)
