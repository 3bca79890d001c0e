"""How a run has ended, as its observers call it."""

import sys
from typing import Literal

from flwr_asyncdrop.server.state import RunState

Outcome = Literal["finished", "ended early", "failed", "interrupted"]


class Ending:
    """Tells an error of the run from one that was there before it began."""

    def __init__(self) -> None:
        self._before = sys.exception()

    def outcome(self, state: RunState) -> Outcome:
        """Return the outcome of a run in its `on_end`."""
        if sys.exception() is not self._before:
            return "failed"
        return "ended early" if state.ended else "finished"
