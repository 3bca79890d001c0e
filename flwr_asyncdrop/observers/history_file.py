"""The file of a history: one writer, whole lines, JSON that every reader takes."""

import json
import math
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.storage.appended import AppendedFile, Prefix
from flwr_asyncdrop.storage.lock import FolderLock
from flwr_asyncdrop.storage.whole import changing, make_folder


def lock_of(path: Path) -> str:
    """Return the name of the lock, beside a history, that its writer holds."""
    return f".{path.name}.lock"


class HistoryFile:
    """A file of records, one a line, that nobody else may be writing.

    Parameters
    ----------
    path : Path
        The file; its folder is made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = FolderLock(path.parent, lock_of(path))
        self._file: AppendedFile | None = None
        self._prefix = Prefix()
        self._is_verified = False
        self._is_cut = False
        self._is_made = False

    @property
    def is_open(self) -> bool:
        """Whether lines can be written."""
        return self._file is not None and self._is_cut

    @property
    def num_bytes(self) -> int:
        """Bytes of all lines so far."""
        return (self._file or self._prefix).num_bytes

    @property
    def sha256(self) -> str:
        """The digest of all lines so far."""
        return (self._file or self._prefix).sha256

    def begin(self, *, overwrite: bool) -> None:
        """Open it, and leave it as it is until `cut`.

        ConfigError if it has something that is not to be overwritten.
        """
        self._lock.__enter__()
        if not overwrite and self._is_there():
            raise ConfigError(
                f"{self.path} has the history of another run: choose another place, "
                "or say overwrite"
            )
        self._open(None)

    def verify(self, num_bytes: int, sha256: str) -> None:
        """Raise a CheckpointError if it does not begin with what was written."""
        self._prefix = Prefix.verified(self.path, num_bytes, sha256)
        self._is_verified = True

    def resume(self) -> None:
        """Open it behind what was verified; the rest is there until `cut`.

        CheckpointError if nothing was.
        """
        if not self._is_verified:
            raise CheckpointError(
                f"the checkpoint has no history, and {self.path} cannot begin in the "
                "middle of a run: leave it out, or start the run again without resume"
            )
        self._lock.__enter__()
        self._open(self._prefix)

    def cut(self) -> None:
        """Cut off what it had, or what was behind the verified part."""
        if self._file is not None:
            with changing(self.path):
                self._file.cut()
        self._is_cut = True

    def write(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write records; after an OSError it has none of them."""
        if self._file is not None:
            text = "".join(f"{as_json(record)}\n" for record in records)
            self._file.append(text.encode())

    def close(self) -> None:
        """Close it, and let others write."""
        if self._file is not None:
            self._file.close()
            self._file = None
            if self._is_made and not self._is_cut:  # the run was refused
                with suppress(OSError):
                    self.path.unlink()
        self._lock.release()

    def _is_there(self) -> bool:
        try:
            return self.path.stat().st_size > 0
        except FileNotFoundError:
            return False

    def _open(self, prefix: Prefix | None) -> None:
        make_folder(self.path.parent)
        self._is_made = not os.path.lexists(self.path)
        with changing(self.path):
            self._file = AppendedFile(self.path, prefix)
        self._is_cut = False


def as_json(value: object) -> str:
    """Return JSON, with null for NaN and infinity, for which it has no number."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
