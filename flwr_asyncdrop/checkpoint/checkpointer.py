"""When a run is saved, whether it may be, and what it resumes from."""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Self
from uuid import uuid4

from flwr_asyncdrop.checkpoint.checkpoint import Checkpoint, newest
from flwr_asyncdrop.checkpoint.codec import Json, as_json
from flwr_asyncdrop.checkpoint.files import (
    FOLDER,
    all_checkpoints,
    all_of_ours,
    checkpoints_of,
    delete,
    delete_drafts,
    run_of,
    updates_of,
)
from flwr_asyncdrop.checkpoint.parts import Parts, lacking, left_out, pack_parts
from flwr_asyncdrop.checkpoint.refusal import forget_refusal, refuse
from flwr_asyncdrop.checkpoint.series import Series
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.parameters import A_SWITCH, whole_from
from flwr_asyncdrop.paths import AnyPath, as_path
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.storage.lock import FolderLock
from flwr_asyncdrop.storage.whole import changing

logger = logging.getLogger("flwr.asyncdrop")


class Checkpointer(Callback):
    """Saves a run, and says what it resumes from; a context manager.

    While it is entered, as `AsyncStrategy.start` does, nobody else can write to the
    folder: a second one is refused with a FolderError that says who does.

    There is a checkpoint before the first update, one every so many rounds, one when
    a signal stops the run, and one when the run ends early. One that cannot be written
    costs a warning, not the run. So does one that lacks something: from then on the run
    has none but those that lack nothing.

    The loop's thread calls `state_dict` of each part, which clones what is changed in
    place. A second thread writes it; the loop waits for the disk only if the checkpoint
    before is still being written.

    Parameters
    ----------
    folder : str or Path
        The folder of the run; checkpoints go to its ``checkpoints``.
    resume : str or Path, optional
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
    digests : mapping of str to str
        Settings that name a file, each with the one that is the file's digest: the file
        may lie elsewhere when the run resumes.
    defaults : mapping of str to JSON values
        The values of settings that a checkpoint is too old to have.
    command : str, or callable
        How to resume the run, for the log. A function returns it from the number of
        devices that the run has seen, 0 for unknown.
    overwrite : bool
        Whether a run may delete the checkpoints of another one in the folder. Without
        that it is refused.
    """

    def __init__(
        self,
        folder: AnyPath,
        *,
        resume: AnyPath | None = None,
        every: int = 10,
        keep: int = 2,
        settings: Mapping[str, Json] | None = None,
        incidental: Collection[str] = (),
        digests: Mapping[str, str] | None = None,
        defaults: Mapping[str, Json] | None = None,
        command: str | Callable[[int], str] = (
            "do the same with Checkpointer(folder, resume=folder)"
        ),
        overwrite: bool = False,
    ) -> None:
        whole_from(1).check("every", every)
        whole_from(1).check("keep", keep)
        self.folder = as_path("folder", folder).absolute()
        self.resume = None if resume is None else as_path("resume", resume).absolute()
        self.every = every
        self.keep = keep
        self.settings = dict(settings or {})
        self.incidental = incidental
        self.digests = dict(digests or {})
        self.defaults = dict(defaults or {})
        self.command = command
        self.overwrite = A_SWITCH.check("overwrite", overwrite)
        self._all_settings = self.settings
        self._unresumable = ""
        self._lock = FolderLock(self.folder)
        self._run = ""
        self._series = Series(self.path, keep, self._lock.check)
        self._parts: Parts = {}
        self._updates_between = 0
        self._due = 0
        self._begun = False

    @property
    def path(self) -> Path:
        """The folder of the checkpoints."""
        return self.folder / FOLDER

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def load(
        self, settings: Mapping[str, Json], unresumable: str = ""
    ) -> Checkpoint | None:
        """Return the checkpoint that the run resumes from; None if it begins.

        `settings` are those that the strategy knows. `unresumable` says why no
        checkpoint has all that the run depends on: none is saved then. A
        CheckpointError says that there is no checkpoint, or none that fits; a
        ConfigError, that the run cannot resume, that another run's are in the way, or
        that a setting is no JSON.
        """
        self._unresumable = unresumable
        if self.resume is not None and unresumable:
            raise ConfigError(f"{unresumable}: start it again")
        together = {**settings, **self.settings}
        self._all_settings = {  # a key that is none of JSON's would be another one
            str(key): as_json(key, value) for key, value in together.items()
        }
        self._series.paths = []
        if self.resume is None:
            if not self.overwrite and all_checkpoints(self.path):
                raise ConfigError(
                    f"{self.path} has a run that can be resumed: {self._command()}; to "
                    "replace it, say overwrite"
                )
            self._run = uuid4().hex
            return None
        checkpoint = newest(self.resume)
        checkpoint.check_settings(
            self._all_settings, self.defaults, self.incidental, self.digests
        )
        self._run = checkpoint.run
        self._check_room(checkpoint)
        if self._has(checkpoint):
            self._series.paths = [
                path
                for path in reversed(checkpoints_of(self.path, self._run))
                if int(path.name) <= int(checkpoint.path.name)
            ]
        return checkpoint

    def attach(self, parts: Parts, updates_per_round: int) -> None:
        """Set what is saved, by name, before the run begins."""
        self._parts = parts
        self._updates_between = self.every * updates_per_round
        self._due = 0
        self._begun = False

    def on_resume(self, state: RunState) -> None:
        """Say how far the run has come, and save nothing before the next round."""
        done = counted(state.updates, "update")
        logger.info("resumes from %s, where it had %s", self.resume, done)
        self._due = self._next(state)

    def on_begin(self, state: RunState) -> None:
        """Delete the checkpoints of the run that is replaced.

        Of one that resumes, delete those after the one that it resumes from: they count
        on the history after it, which the run writes again.
        """
        replaced: Iterable[Path] = ()
        if self.resume is not None:
            all_there = checkpoints_of(self.path, self._run)
            later = [path for path in all_there if path not in self._series.paths]
            replaced = [*later, *self._of_others()]
        elif self.overwrite:
            replaced = all_of_ours(self.path)
        with changing(self.path):
            delete_drafts(self.path)
            delete(replaced)
            forget_refusal(self.path)
        self._begun = True
        if self._unresumable:
            self._refuse()

    def on_pause(self, state: RunState) -> None:
        """Save the run, if a checkpoint is due."""
        if state.updates >= self._due and not self._unresumable:
            self._due = self._next(state)
            self._save(state)

    def on_interrupt(self, state: RunState) -> None:
        """Save the run as it is now, and say how it resumes."""
        if not self._begun:  # what is there may be of another run
            logger.warning("interrupted before the run began: nothing was changed")
            return
        logger.warning("interrupted; %s", self._save_last(state))

    def on_end(self, state: RunState) -> None:
        """Save a run that ended before its last round, and wait for the disk."""
        if state.ended and self._begun:
            logger.warning("%s", self._save_last(state))
        self._series.close()

    def _check_room(self, checkpoint: Checkpoint) -> None:
        """Raise ConfigError for checkpoints in the folder that would be replaced."""
        if self.overwrite:
            return
        if self._of_others():
            raise ConfigError(
                f"{self.path} has another run than {checkpoint.path} is of: choose "
                "another folder; to replace it, say overwrite"
            )
        if not self._has(checkpoint) and checkpoints_of(self.path, self._run):
            raise ConfigError(
                f"{self.path} has checkpoints of this run already, and "
                f"{checkpoint.path} is of another folder: resume {self.folder}; to "
                "replace them, say overwrite"
            )

    def _has(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint lies in the folder."""
        try:
            return checkpoint.path.parent.samefile(self.path)
        except FileNotFoundError:
            return False

    def _of_others(self) -> list[Path]:
        """Return the checkpoints in the folder that are of another run."""
        known = ("", self._run)  # "" for one that cannot be read
        return [path for path in all_of_ours(self.path) if run_of(path) not in known]

    def _command(self, devices: int = 0) -> str:
        return self.command(devices) if callable(self.command) else self.command

    def _next(self, state: RunState) -> int:
        return (state.updates // self._updates_between + 1) * self._updates_between

    def _save_last(self, state: RunState) -> str:
        """Save the run and wait for the disk; return how it resumes, or why not."""
        if not self._unresumable:
            self._save(state)
        self._series.close()
        if not self._series.paths and self._unresumable:
            return f"{self._unresumable}: start it again"
        if not self._series.paths:
            return "no checkpoint could be written"
        last = updates_of(self._series.paths[-1])
        where = f" from update {last}" * bool(self._unresumable)
        return f"to resume{where}: {self._command(state.num_devices)}"

    def _save(self, state: RunState) -> None:
        self._series.wait()
        try:
            parts, tensors = pack_parts(self._parts)
        except CheckpointError as error:
            if not state.updates:
                raise
            self._give_up(str(error))
            return
        if lacks := lacking(self._parts, parts, tensors):
            self._give_up(lacks)
            return
        for each in left_out(self._parts):
            logger.warning("%s (see docs/checkpoints.md)", each)
        body = {
            "run": self._run,
            "settings": self._all_settings,
            "updates": state.updates,
            "devices": state.num_devices,
            "parts": parts,
            "complete": True,
        }
        callbacks = [p for p in self._parts.values() if isinstance(p, Callback)]
        files = [file for callback in callbacks for file in callback.files]
        self._series.write(body, tensors, files)

    def _give_up(self, lacks: str) -> None:
        """Have no checkpoints any more: none is all that the run depends on.

        Those from before stay: of each it was found that it lacks nothing. One from
        before the first update saves nobody anything.
        """
        self._unresumable = f"{lacks}, so the run cannot be resumed"
        complete = [path for path in self._series.paths if updates_of(path)]
        if not complete:
            logger.warning(
                "%s: from here on it has no checkpoints (see docs/checkpoints.md)",
                self._unresumable,
            )
            self._refuse()
            return
        logger.warning(
            "%s: from here on the run has no checkpoints, and resumes from that of "
            "update %d (see docs/checkpoints.md)",
            lacks,
            updates_of(complete[-1]),
        )
        self._series.delete(but=complete)

    def _refuse(self) -> None:
        """Say in the place of the checkpoints why there are none, and delete them."""
        try:
            refuse(self.path, self._unresumable)
        except OSError as error:
            logger.warning("%s cannot be changed: %s", self.path, error)
        self._series.delete()
