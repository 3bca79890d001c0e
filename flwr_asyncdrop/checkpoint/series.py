"""The checkpoints of one run in a folder: a thread writes them, the oldest go."""

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from torch import Tensor

from flwr_asyncdrop.checkpoint.codec import Json
from flwr_asyncdrop.checkpoint.files import delete, write

logger = logging.getLogger("flwr.asyncdrop")


class Series:
    """The checkpoints of one run.

    What the disk refuses costs a warning, never the run.

    Parameters
    ----------
    folder : Path
        Where they are.
    keep : int
        How many there are at most.
    check : callable
        Raises an OSError if nothing may be written there any more.

    Attributes
    ----------
    paths : list of Path
        Those there are, the oldest first.
    """

    def __init__(self, folder: Path, keep: int, check: Callable[[], None]) -> None:
        self.paths: list[Path] = []
        self._folder = folder
        self._keep = keep
        self._check = check
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None

    def write(
        self,
        body: Mapping[str, Json],
        tensors: Mapping[str, Tensor],
        files: Sequence[Path],
    ) -> None:
        """Write a checkpoint beside the caller, behind the one that is being written.

        `files` are on the disk before it is.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(self._write, body, tensors, files)

    def wait(self) -> None:
        """Wait for the one that is being written."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def close(self) -> None:
        """Wait for the disk, and end the thread until the next one is written."""
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def delete(self, but: Sequence[Path] = ()) -> None:
        """Delete all, but those."""
        try:
            delete(path for path in self.paths if path not in but)
        except OSError as error:
            logger.warning("%s cannot be changed: %s", self._folder, error)
        self.paths = [*but]

    def _write(
        self,
        body: Mapping[str, Json],
        tensors: Mapping[str, Tensor],
        files: Sequence[Path],
    ) -> None:
        try:
            self._check()
            self.paths.append(write(self._folder, body, tensors, files))
        except Exception as error:  # whatever it is, nobody waits for this thread
            logger.warning(
                "no checkpoint at update %d, and the run continues: %s",
                body["updates"],
                error,
            )
            return
        while len(self.paths) > self._keep:
            try:
                delete(self.paths[:1])
            except OSError as error:
                logger.warning(
                    "cannot delete the checkpoint %s, and the run continues: %s",
                    self.paths[0],
                    error,
                )
                return
            del self.paths[0]
