"""A SuperNode's own folder under TMPDIR, and those that killed ones left behind."""

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

PREFIX = "asyncdrop-"

_LOCK, _PAUSE = "lock", 0.05
_TOO_YOUNG = 60.0  # seconds in which one that is being made may have no lock yet
_ENDINGS = ("SIGTERM", "SIGHUP")  # Ctrl-C raises KeyboardInterrupt anyway


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder for this user alone, which goes when the block ends.

    It goes with SIGTERM, SIGHUP and whatever is raised. A lock in it ends with this
    process, however that ends: the next call removes the folders of those killed.
    Another one, on the folder, lets ``systemd-tmpfiles`` leave alone what is in it.
    """
    made: list[Path] = []

    def leave(number: int, _: FrameType | None) -> None:
        # No exception: the process would then wait for Flower's threads, which nothing
        # ends where this is a second signal, after one that Flower has handled.
        for each in made:
            shutil.rmtree(each, ignore_errors=True)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    for name in _ENDINGS:
        if signal.getsignal(number := getattr(signal, name)) != signal.SIG_IGN:
            signal.signal(number, leave)  # nohup lets SIGHUP be ignored
    remove_abandoned(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    made.append(folder)
    try:
        with (folder / _LOCK).open("w") as lock, locked_folder(folder):
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Hold a lock on a folder: what clears old files away passes it by (tmpfiles.d)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with suppress(OSError):  # a file system without locks on folders
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def remove_abandoned(parent: Path) -> None:
    """Remove the folders whose SuperNode has ended; those of other users are theirs."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            status = folder.lstat()
            ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
            if ours and time.time() - status.st_mtime > _TOO_YOUNG:
                remove_if_abandoned(folder)


def remove_if_abandoned(folder: Path, patience: float = 0.0) -> None:
    """Remove a folder that `private_folder` made, if nobody holds its lock any more.

    `patience` are seconds to wait for a process that is ending.
    """
    deadline = time.monotonic() + patience
    with suppress(OSError), (folder / _LOCK).open() as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    return
                time.sleep(_PAUSE)
            else:
                shutil.rmtree(folder, ignore_errors=True)
                return
