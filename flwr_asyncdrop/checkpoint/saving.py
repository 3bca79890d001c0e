"""Whether a run saves itself, and what it goes on from."""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from flwr_asyncdrop.checkpoint.checkpoints import Checkpoints
from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.checkpoint.files import Checkpoint
from flwr_asyncdrop.server.run import RunMemory
from flwr_asyncdrop.server.signals import Signals
from flwr_asyncdrop.server.state import RunState


@dataclass(frozen=True)
class Saving:
    """Whether a run saves itself, and what it goes on from.

    Attributes
    ----------
    checkpoints : Checkpoints or None
        When and where it saves itself; None if it does not.
    checkpoint : Checkpoint or None
        What it goes on from; None if it begins.
    """

    checkpoints: Checkpoints | None = None
    checkpoint: Checkpoint | None = None

    @classmethod
    def open(
        cls, checkpoints: Checkpoints | None, told: Mapping[str, Json]
    ) -> "Saving":
        """Find what a run goes on from, which must have been told the same.

        Parameters
        ----------
        checkpoints : Checkpoints or None
            As they were passed in; what they say of the settings goes first.
        told : mapping of str to JSON values
            What the run is told, which must not change.

        Raises
        ------
        CheckpointError
            If the checkpoint that it is to go on from cannot be used.
        """
        if checkpoints is None:
            return cls()
        checkpoints = replace(checkpoints, settings={**told, **checkpoints.settings})
        return cls(checkpoints, checkpoints.open())

    @property
    def devices(self) -> int:
        """How many devices the run had; 0 if it begins."""
        return 0 if self.checkpoint is None else self.checkpoint.devices

    def state(self, begun: RunState) -> RunState:
        """Return the state that the run has at first.

        Parameters
        ----------
        begun : RunState
            What it is if the run begins now.

        Raises
        ------
        CheckpointError
            If the run goes on, with another model.
        """
        return begun if self.checkpoint is None else self.checkpoint.state(begun)

    def session(self) -> RunMemory | None:
        """Return the size and the devices that the run had; None if it begins.

        Raises
        ------
        CheckpointError
            If the checkpoint is of another version.
        """
        if self.checkpoint is None:
            return None
        memory: RunMemory = self.checkpoint.part("session", RunMemory)
        return memory

    def guard(self, signals: Signals) -> AbstractContextManager[object]:
        """Return the context of the run: with signals kept back, if it can be saved."""
        return nullcontext() if self.checkpoints is None else signals
