"""The folder of a run of the ready app: its files, and how far the run is."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

from safetensors import SafetensorError, safe_open

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.checkpoint import run_folder
from flwr_asyncdrop.checkpoint.files import FOLDER, all_checkpoints, discard
from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.extras import is_installed
from flwr_asyncdrop.paths import as_folder_name, make_output_folder, tidied
from flwr_asyncdrop.report.files import HISTORY, run_of_comparison
from flwr_asyncdrop.report.reading import is_unwritten, read_log
from flwr_asyncdrop.report.runlog import RunLog
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.storage.done import DONE, is_as_marked, mark_done, read_mark
from flwr_asyncdrop.storage.whole import changing

_MODEL, _PICTURE = "model.safetensors", "run.png"


@dataclass(frozen=True)
class RunFolder:
    """What a folder has of a run, when it is first asked for.

    The files come in this order: checkpoints and history, model, picture, mark. With
    the mark the checkpoints go. What there is of a later one is never of another run
    than the history, as a run that begins or resumes deletes the later ones first.
    """

    path: Path

    @property
    def history(self) -> Path:
        """The record of the run."""
        return self.path / HISTORY

    @property
    def model(self) -> Path:
        """The trained model."""
        return self.path / _MODEL

    @property
    def picture(self) -> Path:
        """The picture of the run; there is none without Matplotlib."""
        return self.path / _PICTURE

    @property
    def files(self) -> dict[str, Path]:
        """Those of the three that are there, by what they are."""
        found = {"history": self.history, "model": self.model, "picture": self.picture}
        return {label: path for label, path in found.items() if path.exists()}

    @cached_property
    def log(self) -> RunLog | None:
        """The history, if there is one that says how the run began.

        DataError if it is damaged and no checkpoint can tell from where on, or if it
        was changed after the run had ended.
        """
        if not self.history.exists() or is_unwritten(self.history):
            return None
        try:
            return read_log(self.history)
        except DataError:
            if self.can_resume:
                return None
            raise

    @property
    def can_resume(self) -> bool:
        """Whether there is a checkpoint, damaged or not."""
        return bool(all_checkpoints(self.path / FOLDER))

    @property
    def is_trained(self) -> bool:
        """Whether the run did all its rounds, and its model is there.

        DataError if the model cannot be read: it may be whole.
        """
        if self.log is None or not self.log.complete or not self.model.exists():
            return False
        try:
            self.model.open("rb").close()
        except OSError as error:
            raise DataError(
                f"cannot read the model {self.model}: {error.strerror}"
            ) from error
        try:
            with safe_open(self.model, framework="pt"):
                return is_as_marked(self.path, _MODEL)
        except (OSError, SafetensorError):
            return False

    @property
    def is_complete(self) -> bool:
        """Whether all files are there, and the mark that says so."""
        drawn = self.picture.exists() or not is_installed("matplotlib")
        return read_mark(self.path) is not None and drawn and self.is_trained

    def refuse_what_is_there(self, resume_command: str) -> None:
        """Raise a ConfigError if the folder has a run already, as far as it came."""
        replace = "to replace it, say --overwrite (flwr run: overwrite=true)"
        if self.can_resume and not self._is_over:
            raise ConfigError(
                f"{self.path} has a run that was interrupted; to resume it: "
                f"{resume_command}; {replace}"
            )
        if self.files or (self.path / DONE).exists() or self.can_resume:
            state = "is over" if self._is_over else "was cut off and has no checkpoint"
            raise ConfigError(
                f"{self.path} has a run that {state}: choose another out-dir; {replace}"
            )

    @property
    def _is_over(self) -> bool:
        try:
            return self.is_trained
        except DataError:
            return True

    def mark(self) -> None:
        """Say that all files are there, and delete the checkpoints."""
        mark_done(self.path, (HISTORY, _MODEL))
        discard(self.path / FOLDER)


class EarlierFiles(Callback):
    """Deletes, when a run begins or resumes, what would be of another history."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def on_begin(self, state: RunState) -> None:
        """Delete the mark first: it says that the others are there."""
        folder = self._folder
        for path in (folder.path / DONE, folder.model, folder.picture):
            with changing(path):
                path.unlink(missing_ok=True)


@contextmanager
def output_dir(config: RunConfig) -> Iterator[Path]:
    """Yield the absolute folder of the run's files, made unless the run resumes.

    One that is made, and has no files when an error ends the block, is taken away.
    """
    if config.resume:
        yield run_folder(Path(config.resume).expanduser().absolute())
        return
    chosen = Path(config.out_dir).expanduser().absolute() if config.out_dir else None
    # A report would take the run for one of theirs.
    if chosen and (other := run_of_comparison(chosen)):
        raise ConfigError(
            f"{chosen} has the runs of a comparison, such as {other}: choose another "
            "out-dir"
        )
    with tidied(chosen or Path.cwd() / "runs"):
        out = make_output_folder(chosen) if chosen else _new_folder(config)
        try:
            yield out
        except BaseException:
            if chosen is None:
                with suppress(OSError):
                    out.rmdir()
            raise


def _new_folder(config: RunConfig) -> Path:
    """Make a folder of its own for a run."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    name = f"{stamp}-{as_folder_name(config.algorithm.label())}"
    parent, number = make_output_folder(Path.cwd() / "runs"), 1
    out = parent / name
    with changing(parent):
        while True:
            try:
                out.mkdir()
            except FileExistsError:  # two runs began in one second
                number += 1
                out = parent / f"{name}-{number}"
            else:
                return out
