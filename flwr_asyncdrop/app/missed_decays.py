"""Say that a run was over before its learning rate had decayed."""

import logging

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.lr_schedule import ExpectedSchedule
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState

logger = logging.getLogger("flwr.asyncdrop")


class MissedDecays(Callback):
    """Warns of a run that was complete before its last milestone.

    Milestones that are shares lie on the updates of all rounds, to which a run that
    its time ends does not come, nor do devices that are absent more than others.
    Those in seconds may lie beyond the run.
    """

    def __init__(self, config: RunConfig, schedule: ExpectedSchedule) -> None:
        self._config = config
        self._schedule = schedule

    def on_end(self, state: RunState) -> None:
        """Warn of decays that did not come."""
        config, places = self._config, self._schedule.built.milestones
        in_seconds = config.milestones_in_seconds
        out_of_time = 0 < config.max_seconds <= state.time
        if not (out_of_time or state.updates >= self._schedule.num_updates):
            return
        # A task that would be sent at the very end has no device to train it.
        reached = sum(
            state.time > place if in_seconds else state.fastest_updates >= place
            for place in places
        )
        if reached == len(places) or config.lr_gamma == 1:
            return
        decayed = f"when lr had decayed {reached} of {len(places)} times"
        given = config.lr_milestones
        if in_seconds:
            logger.warning(
                "the run ended at %g s, %s: the milestone %gs of lr-milestones=%r was "
                "not before that",
                *(state.time, decayed, places[reached], given),
            )
            return
        length = config.max_seconds if out_of_time else state.time
        seconds = ",".join(f"{m * length:g}s" for m in config.milestones)
        if out_of_time:
            logger.warning(
                "max-seconds=%g ended the run %s: lr-milestones=%r are shares of all "
                "%d rounds. Of the time they are %r",
                *(config.max_seconds, decayed, given, config.num_rounds, seconds),
            )
            return
        logger.warning(
            "num-rounds=%d were over %s: the milestone %g of lr-milestones=%r is %d "
            "updates of the fastest devices, which did %d. Of the time they are %r",
            *(config.num_rounds, decayed, config.milestones[reached], given),
            *(places[reached], state.fastest_updates, seconds),
        )
