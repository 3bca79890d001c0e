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
    """Says, once, that more devices would train if the run began now.

    `training` returns how many tasks may be in flight, with so many devices.
    """

    def __init__(self, run: Run, training: Callable[[int], int]) -> None:
        self._slots = run.slots
        self._all_wait = run.aggregator.waits_for >= run.slots
        self._training = training
        self._fleet: Fleet | None = None if run.simulated else run.fleet

    def on_round(self, state: RunState, number: int) -> None:
        """Look at who is there."""
        if self._fleet is None:
            return
        present = len(self._fleet.present)
        wanted = min(self._training(present), present)
        if wanted <= self._slots:
            return
        self._fleet = None
        why = (
            "all wait for each other, so it stays at as many as were there at first: "
            f"min_available_nodes={wanted} waits for more"
            if self._all_wait
            else "fraction_train counts those that were there at first: "
            f"in_flight={wanted} says how many, whoever is there, and "
            f"min_available_nodes={present} waits for them"
        )
        logger.warning(
            "%s at any moment, for %s that are connected by now; %s",
            counted(self._slots, "task"),
            counted(present, "device"),
            why,
        )
