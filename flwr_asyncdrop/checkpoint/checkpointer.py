"""Saves a run in a thread, and finds the checkpoint that it resumes from."""

import logging
import shutil
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from safetensors import SafetensorError
from torch import Tensor

from flwr_asyncdrop.checkpoint.checkpoint import Checkpoint, newest
from flwr_asyncdrop.checkpoint.codec import Json, pack
from flwr_asyncdrop.checkpoint.files import FOLDER, START_OVER, forget_later, write
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.parameters import at_least
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.state_dict import Stateful

logger = logging.getLogger("flwr.asyncdrop")


class Checkpointer(Callback):
    """Saves a run, and says what it resumes from.

    There is a checkpoint before the first update, one every so many rounds, one when
    a signal stops the run, and one when the run ends early. One that cannot be written
    costs a warning, not the run.

    The loop's thread calls `state_dict` of each part, which clones what is changed in
    place. A second thread writes it; the loop waits for the disk only if the checkpoint
    before is still being written.

    Parameters
    ----------
    folder : Path
        The folder of the run; checkpoints go to its ``checkpoints``.
    resume : Path, optional
        What the run resumes from: its folder, for the newest checkpoint there, or one
        checkpoint. None to begin.
    every : int
        Rounds from one checkpoint to the next, at least 1.
    keep : int
        Checkpoints that there are at most, at least 1.
    settings : mapping of str to JSON values
        The settings of the run, beside those that its strategy knows and with
        precedence over them. A run resumes only with the settings of its checkpoint.
    incidental : collection of str
        Settings that may differ when the run resumes.
    defaults : mapping of str to JSON values
        The values of settings that a checkpoint is too old to have.
    command : str
        How to resume the run, for the log.
    """

    def __init__(
        self,
        folder: Path,
        *,
        resume: Path | None = None,
        every: int = 10,
        keep: int = 2,
        settings: Mapping[str, Json] | None = None,
        incidental: Collection[str] = (),
        defaults: Mapping[str, Json] | None = None,
        command: str = "do the same with Checkpointer(folder, resume=folder)",
    ) -> None:
        at_least(1).check("every", every)
        at_least(1).check("keep", keep)
        self.folder = folder
        self.resume = resume
        self.every = every
        self.keep = keep
        self.settings = dict(settings or {})
        self.incidental = incidental
        self.defaults = dict(defaults or {})
        self.command = command
        self._all_settings = self.settings
        self._resumed: Path | None = None
        self._parts: Mapping[str, Stateful] = {}
        self._updates_between = 0
        self._due = 0
        self._thread: ThreadPoolExecutor
        self._writing: Future[None] | None = None

    @property
    def path(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / FOLDER

    def load(self, settings: Mapping[str, Json]) -> Checkpoint | None:
        """Return the checkpoint that the run resumes from; None if it begins.

        `settings` are those that the strategy knows. A CheckpointError says that there
        is no checkpoint, or none that fits.
        """
        self._all_settings = {**settings, **self.settings}
        self._resumed = None
        if self.resume is None:
            return None
        checkpoint = newest(self.resume)
        self._check_settings(checkpoint)
        self._resumed = checkpoint.path
        return checkpoint

    def attach(self, parts: Mapping[str, Stateful], updates_per_round: int) -> None:
        """Set what is saved, by name, before the run begins."""
        self._parts = parts
        self._updates_between = self.every * updates_per_round
        self._due = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = None

    def on_resume(self, state: RunState) -> None:
        """Delete the checkpoints after the one that the run resumes from."""
        if self._resumed is not None:
            forget_later(self._resumed)
        self._due = self._next(state)

    def on_pause(self, state: RunState) -> None:
        """Save the run, if a checkpoint is due."""
        if state.updates >= self._due:
            self._due = self._next(state)
            self._save(state)

    def on_interrupt(self, state: RunState) -> None:
        """Save the run as it is now, and say how it resumes."""
        self._save(state)
        self._thread.shutdown()
        logger.warning("interrupted; to resume: %s", self.command)

    def on_end(self, state: RunState) -> None:
        """Save a run that ended before its last round, and wait for the disk."""
        if state.ended:
            self._save(state)
            logger.warning("to resume: %s", self.command)
        self._thread.shutdown()

    def discard(self) -> None:
        """Delete all checkpoints, when the run is over and its files are written."""
        if self.path.is_dir():
            # Renamed first: half a folder must not look like one to resume from.
            shutil.rmtree(self.path.rename(self.path.with_suffix(".tmp")))

    def _next(self, state: RunState) -> int:
        return (state.updates // self._updates_between + 1) * self._updates_between

    def _save(self, state: RunState) -> None:
        if self._writing is not None:
            self._writing.result()
        parts, tensors = pack(
            {name: part.state_dict() for name, part in self._parts.items()}
        )
        body = {
            "settings": self._all_settings,
            "updates": state.updates,
            "devices": state.num_devices,
            "parts": parts,
        }
        self._writing = self._thread.submit(self._write, body, tensors)

    def _write(self, body: Mapping[str, Json], tensors: Mapping[str, Tensor]) -> None:
        callbacks = [p for p in self._parts.values() if isinstance(p, Callback)]
        files = [file for callback in callbacks for file in callback.files]
        try:
            write(self.path, body, tensors, self.keep, files)
        except (OSError, SafetensorError) as error:
            logger.warning(
                "no checkpoint at update %d, and the run continues: %s",
                body["updates"],
                error,
            )

    def _check_settings(self, checkpoint: Checkpoint) -> None:
        were, are = {**self.defaults, **checkpoint.settings}, self._all_settings
        differences = [
            f"{key} {were.get(key)!r}, now {are.get(key)!r}"
            for key in {**were, **are}
            if key not in self.incidental and were.get(key) != are.get(key)
        ]
        if differences:
            raise CheckpointError(
                f"{checkpoint.path} is of a run with another configuration "
                f"({'; '.join(differences)}): resume with the same, or {START_OVER}"
            )
