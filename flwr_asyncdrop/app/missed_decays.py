"""Say that a limit in seconds left no time for the learning rate to decay."""

import logging

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.order import Order
from flwr_asyncdrop.server.state import RunState

logger = logging.getLogger("flwr.asyncdrop")


class MissedDecays(Callback):
    """Warns of a run that its time ended before its last milestone.

    Milestones that are shares lie on the updates of all rounds, to which such a run
    does not come.
    """

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._factor = 1.0

    def on_resume(self, state: RunState) -> None:
        """Note how far it had decayed for the tasks that are out."""
        out = [*state.in_flight.values(), *state.late.values()]
        self._factor = min((order.lr_factor for order in out), default=1.0)

    def on_dispatch(self, state: RunState, order: Order) -> None:
        """Note how far the rate has decayed."""
        self._factor = order.lr_factor

    def on_end(self, state: RunState) -> None:
        """Warn of decays that did not come."""
        config = self._config
        reached, count = 0, len(config.milestones)
        while reached < count and self._factor <= config.lr_gamma ** (reached + 1):
            reached += 1
        out_of_time = 0 < config.max_seconds <= state.time
        if not out_of_time or config.milestones_in_seconds or reached == count:
            return
        seconds = ",".join(f"{m * config.max_seconds:g}s" for m in config.milestones)
        logger.warning(
            "max-seconds=%g ended the run when lr had decayed %d of %d times: "
            "lr-milestones=%r are shares of all %d rounds. Of the time they are %r",
            *(config.max_seconds, reached, count, config.lr_milestones),
            *(config.num_rounds, seconds),
        )
