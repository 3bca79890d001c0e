"""Files that are there as a whole, or not at all."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flwr_asyncdrop.exceptions import FolderError

_DRAFT = ".tmp"
_DRAFTS = ".drafts.tmp"


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Make a FolderError of an OSError: one line that names what is to be changed."""
    try:
        yield
    except OSError as error:
        raise FolderError(
            f"cannot write {path}: {error.strerror or error}; make that possible, or "
            "choose another folder"
        ) from error


def make_folder(folder: Path) -> Path:
    """Make a folder if need be, and return it; FolderError if that is impossible."""
    if "\0" in str(folder):
        raise FolderError(f"{str(folder)!r} is no folder: it has a NUL")
    with changing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_whole(path: Path, data: bytes) -> Path:
    """Replace a file in one step; an OSError leaves what was there before."""
    with draft_of(path) as draft:
        draft.write_bytes(data)
    return path


@contextmanager
def draft_of(path: Path) -> Iterator[Path]:
    """Yield a path beside `path`, whose file takes its place when the block ends."""
    draft = path.with_name(f".{path.name}{_DRAFT}")
    try:
        yield draft
        sync(draft)
        draft.replace(path)
    except BaseException:
        with suppress(OSError):  # it may be what fills the disk
            draft.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def drafts_of(folder: Path, last: str) -> Iterator[Path]:
    """Yield a folder whose files go into `folder` when the block ends, or none of them.

    The file `last` comes after all others, and is deleted before they come: whatever
    stops that, where it is, the others are of the same block. Nobody else may do this
    in the same folder at once.
    """
    drafts = folder / _DRAFTS
    shutil.rmtree(drafts, ignore_errors=True)  # of a process that was killed
    drafts.mkdir()
    try:
        yield drafts
        names = [path.relative_to(drafts) for path in drafts.rglob("*")]
        (folder / last).unlink(missing_ok=True)
        for name in sorted(names):
            if (drafts / name).is_dir():
                (folder / name).mkdir(exist_ok=True)
            elif str(name) != last:
                (drafts / name).replace(folder / name)
        sync(folder)
        (drafts / last).replace(folder / last)
    finally:
        shutil.rmtree(drafts, ignore_errors=True)
    sync(folder)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    Shared folders of virtual machines, for example, know no waiting for names.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)
