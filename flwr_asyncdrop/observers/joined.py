"""Devices that join a run, of which a share trains."""

import logging
from collections.abc import Callable

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.run import Run
from flwr_asyncdrop.server.state import RunState

logger = logging.getLogger("flwr.asyncdrop")


class JoinedDevices(Callback):
    """Says, once, that a larger share would train if the run began now.

    `training` returns how many devices are to train at once, of so many.
    """

    def __init__(self, run: Run, training: Callable[[int], int]) -> None:
        self._slots = run.slots
        self._training = training
        self._fleet: Fleet | None = None if run.simulated else run.fleet

    def on_round(self, state: RunState, number: int) -> None:
        """Look at who is there."""
        if self._fleet is None:
            return
        present = len(self._fleet.present)
        wanted = self._training(present)
        if wanted > self._slots:
            self._fleet = None
            logger.warning(
                "%s at any moment, for %s that are connected by now: the share is one "
                "of those that were there at first. in_flight=%d says how many, "
                "whoever is there, and min_available_nodes=%d waits for them",
                counted(self._slots, "task"),
                counted(present, "device"),
                wanted,
                present,
            )
