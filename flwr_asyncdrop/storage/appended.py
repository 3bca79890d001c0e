"""A file that grows by whole pieces, and the digest of all that it holds."""

import hashlib
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from flwr_asyncdrop.exceptions import CheckpointError

_BLOCK = 1 << 20
_PUT_IT_BACK = "put the run's own back, or start the run again without resume"


class AppendedFile:
    """A file that is open for appending.

    Parameters
    ----------
    path : Path
        Is made if it is not there.
    begins_with : Prefix, optional
        What it keeps of what it has; `cut`, or the first piece, cuts off the rest.
    """

    def __init__(self, path: Path, begins_with: "Prefix | None" = None) -> None:
        prefix = begins_with or Prefix()
        self._num_bytes = prefix.num_bytes
        self._digest = prefix.digest.copy()
        # Unbuffered: what a failed write has left behind must be known.
        self._file = path.open("r+b" if begins_with else "ab", buffering=0)
        self._torn = True

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces so far."""
        return self._num_bytes

    @property
    def sha256(self) -> str:
        """The digest of all pieces so far."""
        return str(self._digest.hexdigest())

    def append(self, piece: bytes) -> None:
        """Write a piece; an OSError leaves the file without any of it."""
        if self._torn:
            self.cut()
        rest = memoryview(piece)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._torn = True
            with suppress(OSError):
                self.cut()
            raise
        self._digest.update(piece)
        self._num_bytes += len(piece)

    def cut(self) -> None:
        """Cut off what is behind the last whole piece."""
        self._file.truncate(self._num_bytes)
        self._file.seek(self._num_bytes)
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Prefix:
    """The beginning of a file: how long it is, and its digest."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.digest: Any = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """The digest, in hexadecimal digits."""
        return str(self.digest.hexdigest())

    @classmethod
    def verified(cls, path: Path, num_bytes: int, sha256: str) -> Self:
        """Read the beginning of a file; CheckpointError if it is not that of a digest.

        Parameters
        ----------
        path : Path
            The file.
        num_bytes : int
            Length of its beginning.
        sha256 : str
            The digest that it must have.
        """
        prefix = cls()
        try:
            with path.open("rb") as file:
                while block := file.read(min(_BLOCK, num_bytes - prefix.num_bytes)):
                    prefix.digest.update(block)
                    prefix.num_bytes += len(block)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
        if prefix.num_bytes < num_bytes:
            raise CheckpointError(
                f"the history {path} has {prefix.num_bytes} bytes, and the checkpoint "
                f"knows of {num_bytes}: {_PUT_IT_BACK}"
            )
        if prefix.sha256 != sha256:
            raise CheckpointError(
                f"the history {path} was changed, or is of another run: its first "
                f"{num_bytes} bytes are not those of the checkpoint; {_PUT_IT_BACK}"
            )
        return prefix
