"""One holder of a folder at a time, by a lock that ends with its process."""

import errno
import json
import logging
import os
import shlex
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from flwr_asyncdrop.exceptions import FolderError, FolderInUseError
from flwr_asyncdrop.readable import printable
from flwr_asyncdrop.storage.whole import changing, make_folder

if sys.platform != "win32":
    import fcntl

logger = logging.getLogger("flwr.asyncdrop")

_LOCK = ".lock"
_BUSY = (errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK)  # the first: over SMB
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
_POLL_SECONDS = 0.05
_LONGEST_COMMAND = 160
_MOST_BYTES = 4096
_TOKEN, _HIDDEN = "--token", "..."

_Key = tuple[int, int, str]


@dataclass
class _Holding:
    """A lock of this process; `depth` counts how often `thread` has taken it."""

    thread: threading.Thread
    descriptor: int | None
    depth: int = 1


class _BusyError(Exception):
    """Somebody else holds the lock: who, in words."""


class FolderLock:
    """Holds a folder; a context manager.

    The thread that holds it can take it again. Everybody else is refused, other threads
    and forks of this process too. The system drops the lock when the process ends, in
    whatever way. On a file system without locks there is a warning, and no lock.

    Parameters
    ----------
    folder : Path
        Is made if need be. It may be moved while it is held.
    name : str
        File of the lock in it, which says who holds it and is deleted at the end.
    patience : float
        Seconds to wait for another holder.

    Raises
    ------
    FolderInUseError
        On entry, if another one holds the folder.
    FolderError
        On entry, if nothing can be written there.
    """

    def __init__(self, folder: Path, name: str = _LOCK, patience: float = 0.0) -> None:
        self.folder = folder
        self._name = name
        self._patience = patience
        self._keys: list[_Key] = []

    def __enter__(self) -> Self:
        make_folder(self.folder)
        with changing(self.folder):
            self._wait()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _wait(self) -> None:
        deadline = time.monotonic() + self._patience
        while True:
            try:
                self._keys.append(self._take())
            except _BusyError as busy:
                if time.monotonic() >= deadline:
                    raise FolderInUseError(self.folder, str(busy)) from None
                time.sleep(_POLL_SECONDS)
            else:
                return

    def release(self) -> None:
        """Give back what was taken last, if anything was."""
        if not self._keys:
            return
        key = self._keys.pop()
        with _guard:
            holding = _held.get(key)
            if holding is None:  # a fork of the process that took it
                return
            holding.depth -= 1
            if holding.depth:
                return
            del _held[key]
        if holding.descriptor is not None:
            # While it is held: whoever has opened the file looks for it again.
            with suppress(OSError):
                if _identity(self._path) == _identity(holding.descriptor):
                    self._path.unlink()
            os.close(holding.descriptor)

    def check(self) -> None:
        """Raise an OSError if the folder that is held is no longer at its place."""
        if self._keys and _identity(self.folder) != self._keys[-1][:2]:
            raise FileNotFoundError(
                errno.ENOENT, "it was replaced by another folder", str(self.folder)
            )

    @property
    def _path(self) -> Path:
        return self.folder / self._name

    def _take(self) -> _Key:
        key = (*_identity(self.folder), self._name)
        thread = threading.current_thread()
        with _guard:
            holding = _held.get(key)
            if holding is not None:
                if holding.thread is not thread and holding.thread.is_alive():
                    raise _BusyError(f"another thread of this process, {os.getpid()}")
                holding.depth = holding.depth + 1 if holding.thread is thread else 1
                holding.thread = thread
                return key
            _held[key] = _Holding(thread, self._lock())
        return key

    def _lock(self) -> int | None:
        """Return the open file that is locked; None where there are no locks."""
        while True:
            descriptor, is_ours = self._open()
            try:
                _lock_file(descriptor)
                with suppress(FileNotFoundError):
                    if _identity(self._path) == _identity(descriptor):
                        if is_ours:
                            _write_holder(descriptor)
                            return descriptor
                        self._take_away()  # it was left behind
            except OSError as error:
                if error.errno in _BUSY:
                    holder = _holder(descriptor)
                    os.close(descriptor)
                    raise _BusyError(holder) from error
                os.close(descriptor)
                if error.errno not in _NO_LOCKS:
                    raise
                logger.warning(
                    "the file system of %s has no locks (%s): see to it that no other "
                    "process writes to this folder",
                    self.folder,
                    error.strerror,
                )
                return None
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)  # its last holder has just deleted it

    def _open(self) -> tuple[int, bool]:
        """Open the file, and return whether it can be written."""
        flags = getattr(os, "O_NOFOLLOW", 0)
        try:
            return os.open(self._path, flags | os.O_RDWR | os.O_CREAT, 0o644), True
        except PermissionError:
            if not os.path.lexists(self._path):
                raise
        try:
            return os.open(self._path, flags | os.O_RDONLY), False
        except OSError as error:
            raise self._in_the_way() from error

    def _take_away(self) -> None:
        try:
            self._path.unlink()
        except PermissionError as error:
            raise self._in_the_way() from error

    def _in_the_way(self) -> FolderError:
        return FolderError(
            f"{self._path} is user {self._path.lstat().st_uid}'s, and cannot be "
            "replaced: delete it, if no run goes on there, or choose another folder"
        )


def was_killed(folder: Path, name: str = _LOCK) -> bool:
    """Return whether a process of this machine held a folder until it was killed.

    What cannot be known, as of other machines, is taken for alive.
    """
    if sys.platform == "win32":
        return False
    with suppress(OSError), (folder / name).open("rb") as file:
        holder = _read_holder(file.read(_MOST_BYTES))
        if holder.get("host") == socket.gethostname():
            # Shared, so that nobody else who looks seems to be a holder.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def is_free(folder: Path, name: str = _LOCK) -> bool:
    """Return whether nobody holds a folder: who did gave it back, or was killed.

    What cannot be known is taken for held, as where the file system has no locks.
    """
    return not os.path.lexists(folder / name) or was_killed(folder, name)


def _lock_file(descriptor: int) -> None:
    if sys.platform == "win32":
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _identity(place: Path | int) -> tuple[int, int]:
    status = os.fstat(place) if isinstance(place, int) else place.stat()
    return status.st_dev, status.st_ino


def _write_holder(descriptor: int) -> None:
    """Say who holds the lock; it is held without that, too, if the disk is full."""
    holder = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now().astimezone().isoformat(" ", "seconds"),
        "command": textwrap.shorten(_command(sys.argv), _LONGEST_COMMAND),
    }
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(holder).encode(), 0)


def _command(words: Sequence[str]) -> str:
    """Return a command without the token by which Flower knows its ServerApp."""
    shown = [
        _HIDDEN if before == _TOKEN else word for before, word in pairwise(("", *words))
    ]
    given = f"{_TOKEN}="
    return shlex.join(given + _HIDDEN if w.startswith(given) else w for w in shown)


def _read_holder(data: bytes) -> Mapping[str, Any]:
    """Return what `_write_holder` wrote; nothing if it is anything else."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _holder(descriptor: int) -> str:
    found: Mapping[str, Any] = {}
    with suppress(OSError):  # over SMB nobody else can read it
        found = _read_holder(os.pread(descriptor, _MOST_BYTES, 0))
    if not found:
        return "another process"
    named = {key: printable(str(value), _MOST_BYTES) for key, value in found.items()}
    command = textwrap.shorten(named.get("command", ""), _LONGEST_COMMAND)
    return (
        f"process {named.get('pid')} on {named.get('host')} since "
        f"{named.get('since')} ({command})"
    )


_held: dict[_Key, _Holding] = {}
_guard = threading.Lock()


def _forget_in_child() -> None:
    """Let a fork hold nothing, or the lock would outlive the process that took it."""
    global _guard  # a thread that the fork lacks may hold it
    _guard = threading.Lock()
    for holding in _held.values():
        if holding.descriptor is not None:
            os.close(holding.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
