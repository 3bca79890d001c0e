"""What a run is told about its checkpoints, and the one that it goes on from."""

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.checkpoint.files import Checkpoint, all_checkpoints, read
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError

__all__ = ["FOLDER", "Checkpoints", "check_same_run", "newest"]

logger = logging.getLogger("flwr.asyncdrop")

FOLDER = "checkpoints"
"""Name of the checkpoints' folder in the folder of a run."""


@dataclass(frozen=True)
class Checkpoints:
    """When a run saves itself, where, and whether it goes on from there.

    Attributes
    ----------
    folder : Path
        The folder of the run; checkpoints go to its ``checkpoints``.
    every : int
        Rounds from one checkpoint to the next, at least 1. There is one before the
        first update too, one when a signal stops the run, and one when the run ends
        early.
    keep : int
        Checkpoints that there are at most, at least 1.
    resume : bool
        Whether the run goes on from the newest checkpoint in the folder.
    settings : mapping of str to JSON values
        What must be the same when the run goes on.
    command : str
        What makes it go on, for people.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    folder: Path
    every: int = 10
    keep: int = 2
    resume: bool = False
    settings: Mapping[str, Json] = field(default_factory=dict)
    command: str = "the same again, with Checkpoints(..., resume=True)"

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name}={value!r} must be at least 1")

    @property
    def path(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / FOLDER

    def discard(self) -> None:
        """Delete all checkpoints: the run is over, and its files are written."""
        if self.path.is_dir():
            # At once, so that half a folder is never taken for one to go on from.
            shutil.rmtree(self.path.rename(self.path.with_suffix(".tmp")))


def newest(folder: Path) -> Checkpoint:
    """Return the checkpoint to go on from.

    Parameters
    ----------
    folder : Path
        The folder of a run: the newest checkpoint that is whole. Or that of one
        checkpoint, which must be.

    Raises
    ------
    CheckpointError
        If there is none, or if it cannot be used.
    """
    if folder.parent.name == FOLDER:
        return _whole(folder)
    candidates = all_checkpoints(folder / FOLDER)
    if not candidates:
        raise CheckpointError(
            f"{folder} has no checkpoint to go on from: the run ended, never began, or "
            "had checkpoint-every=0"
        )
    for path in candidates[:-1]:
        try:
            return _whole(path)
        except CheckpointError as error:
            logger.warning("%s; trying the one before", error)
    return _whole(candidates[-1])


def check_same_run(checkpoint: Checkpoint, run: Mapping[str, Json]) -> None:
    """Raise CheckpointError if the checkpoint is of a run that was told otherwise."""
    differences = [
        f"{key} {checkpoint.run.get(key)!r}, now {run.get(key)!r}"
        for key in {**checkpoint.run, **run}
        if checkpoint.run.get(key) != run.get(key)
    ]
    if differences:
        raise CheckpointError(
            f"{checkpoint.path} is of a run with another configuration "
            f"({'; '.join(differences)}): go on with the same, or start the run again "
            "without resume"
        )


def _whole(path: Path) -> Checkpoint:
    checkpoint = read(path)
    # Raises if they are damaged.
    _ = checkpoint.tensors
    return checkpoint
