"""What a run is told about its checkpoints, and the one that it goes on from."""

import logging
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.checkpoint.files import Checkpoint, all_checkpoints, read
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError

logger = logging.getLogger("flwr.asyncdrop")

_FOLDER = "checkpoints"


@dataclass(frozen=True)
class Checkpoints:
    """When a run saves itself, where, and whether it goes on from there.

    Attributes
    ----------
    folder : Path
        The folder of the run; checkpoints go to its ``checkpoints``.
    resume : Path, optional
        What the run goes on from: its folder, for the newest checkpoint there, or one
        checkpoint. None to begin.
    every : int
        Rounds from one checkpoint to the next, at least 1. There is one before the
        first update too, one when a signal stops the run, and one when the run ends
        early.
    keep : int
        Checkpoints that there are at most, at least 1.
    settings : mapping of str to JSON values
        What the run is told, in full: a checkpoint keeps it.
    incidental : collection of str
        Those of the `settings` that may be others when the run goes on.
    defaults : mapping of str to JSON values
        What a setting was in a checkpoint that is older than the setting.
    command : str
        What makes it go on, for people.

    Raises
    ------
    ConfigError
        If a number is out of range.
    """

    folder: Path
    resume: Path | None = None
    every: int = 10
    keep: int = 2
    settings: Mapping[str, Json] = field(default_factory=dict)
    incidental: Collection[str] = ()
    defaults: Mapping[str, Json] = field(default_factory=dict)
    command: str = "do the same with Checkpoints(folder, resume=folder)"

    def __post_init__(self) -> None:
        for name in ("every", "keep"):
            if (value := getattr(self, name)) < 1:
                raise ConfigError(f"{name}={value!r} must be at least 1")

    @property
    def path(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / _FOLDER

    def open(self) -> Checkpoint | None:
        """Return the checkpoint that the run goes on from; None if it begins.

        Raises
        ------
        CheckpointError
            If there is none, if it is damaged, or if its run was told otherwise.
        """
        if self.resume is None:
            return None
        checkpoint = newest(self.resume)
        self._check_settings(checkpoint)
        return checkpoint

    def discard(self) -> None:
        """Delete all checkpoints: the run is over, and its files are written."""
        if self.path.is_dir():
            # At once, so that half a folder is never taken for one to go on from.
            shutil.rmtree(self.path.rename(self.path.with_suffix(".tmp")))

    def _check_settings(self, checkpoint: Checkpoint) -> None:
        """Raise CheckpointError if the checkpoint's run was told otherwise."""
        were, are = {**self.defaults, **checkpoint.settings}, self.settings
        differences = [
            f"{key} {were.get(key)!r}, now {are.get(key)!r}"
            for key in {**were, **are}
            if key not in self.incidental and were.get(key) != are.get(key)
        ]
        if differences:
            raise CheckpointError(
                f"{checkpoint.path} is of a run with another configuration "
                f"({'; '.join(differences)}): go on with the same, or start the run "
                "again without resume"
            )


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
    if folder.parent.name == _FOLDER:
        return _whole(folder)
    candidates = all_checkpoints(folder / _FOLDER)
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


def run_folder(path: Path) -> Path:
    """Return the folder of a run from itself or from that of one of its checkpoints."""
    return path.parent.parent if path.parent.name == _FOLDER else path


def _whole(path: Path) -> Checkpoint:
    checkpoint = read(path)
    # Raises if they are damaged.
    _ = checkpoint.tensors
    return checkpoint
