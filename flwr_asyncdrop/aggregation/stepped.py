"""The base class of aggregators whose server steps once every K updates."""

from abc import abstractmethod
from typing import ClassVar

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.parameters import A_SWITCH, whole_from
from flwr_asyncdrop.submodel import State, check_fits


class Stepped(Aggregator):
    """Collects K updates, then takes a step with them.

    Parameters
    ----------
    size : int
        ``K``, at least 1: updates from one step to the next.
    waits : bool
        Whether devices wait for the step that their updates are part of.
    """

    needs_base: ClassVar[bool] = True

    def __init__(self, size: int, *, waits: bool) -> None:
        self.size: int = whole_from(1).check("buffer_size", size)
        self.updates_per_version = self.size
        self.waits_for = self.size if A_SWITCH.check("waits", waits) else 1

    def merge(self, state: State, update: Update) -> bool:
        """Collect the update; with the last of K the global model takes its step."""
        check_fits(state, update.arrays, update.indices)
        self._collect(state, update)
        return self._num_collected() >= self.size and self.flush(state)

    def flush(self, state: State) -> bool:
        """Take the step with the updates that are there."""
        if not self._num_collected():
            return False
        self._step(state)
        return True

    @abstractmethod
    def _num_collected(self) -> int:
        """Return how many updates have come since the last step."""

    @abstractmethod
    def _collect(self, state: State, update: Update) -> None:
        """Take in an update, which fits the model; `state` is only read."""

    @abstractmethod
    def _step(self, state: State) -> None:
        """Change `state` in place by the updates that are there, and begin anew."""
