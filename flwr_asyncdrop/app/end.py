"""The end of a run: its files, one after the other, and what it came to."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Self

from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.exceptions import MissingExtraError
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report import draw_run, summarise
from flwr_asyncdrop.storage.done import DONE
from flwr_asyncdrop.storage.lock import FolderLock
from flwr_asyncdrop.storage.patience import Patience

logger = logging.getLogger("flwr.asyncdrop")


class FilesAtTheEnd:
    """Holds a run's folder and writes what must not be lost; a context manager.

    What the disk does not take is tried again, and `say` is told why, and that the
    command that `resume_command` returns tries again later.
    """

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        resume_command: Callable[[], str],
    ) -> None:
        self.folder = folder
        self._say = say
        self._resume_command = resume_command
        self._lock = FolderLock(folder)
        self._patience = Patience()

    def __enter__(self) -> Self:
        self._lock.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def write(self, path: Path, write: Callable[[], object]) -> None:
        """Write a file, as long as the folder is the one that is held."""

        def checked() -> None:
            self._lock.check()
            write()

        self._patience.until_written(path, checked, self._say, self._otherwise)

    def _otherwise(self) -> str:
        return f"to try again: {self._resume_command()}"

    def finish(self, *, over: bool) -> None:
        """Write the files that come after the model, and log what the run came to.

        If the run is over, the last one is the mark that all are there.
        """
        folder = RunFolder(self.folder)
        if not folder.picture.exists():
            try:
                self.write(
                    folder.picture, lambda: draw_run(folder.history, folder.picture)
                )
            except MissingExtraError as error:
                logger.warning("no picture: %s", error)
        for line in summarise(read_history(folder.history)).text().splitlines():
            logger.info("%s", line)
        for label, path in folder.files.items():
            logger.info("%-8s %s", label, path)
        if over:
            self.write(folder.path / DONE, folder.mark)
