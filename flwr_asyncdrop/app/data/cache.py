"""Arrays that take seconds to read, kept in the user's cache folder."""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from flwr_asyncdrop.app.data.dataset import Arrays


def cached(reader: str, sources: Iterable[Path], read: Callable[[], Arrays]) -> Arrays:
    """Return what ``read`` returns, from the cache if it is there already.

    An entry is valid for one version of the reader and for files of the same place,
    size and time of change. Arrays from the cache are mapped into memory, so that
    processes that load the same data set share it. Where the cache cannot be read or
    written, ``read`` is called each time.

    Parameters
    ----------
    reader : str
        Name and version of the reader, fit for a file name.
    sources : iterable of Path
        All the files that ``read`` reads.
    read : callable
        Reads the arrays from the files.
    """
    try:
        entry = cache_folder() / f"{reader}-{_fingerprint(sources)}"
    except RuntimeError:  # a user without a home
        return read()
    # Not there yet, not allowed, or damaged.
    with suppress(OSError, EOFError, ValueError):
        return _load(entry)
    arrays = read()
    with suppress(OSError):
        _store(entry, arrays)
    return arrays


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/flwr-asyncdrop``, by default under ``~/.cache``.

    What lies there may be deleted at any time.
    """
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "flwr-asyncdrop"


def _fingerprint(sources: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in sources:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:16]


def _load(entry: Path) -> Arrays:
    # Copy on write: torch refuses to share read-only memory without a warning.
    return Arrays(
        *(
            np.load(entry / f"{field}.npy", mmap_mode="c", allow_pickle=False)
            for field in Arrays._fields
        )
    )


def _store(entry: Path, arrays: Arrays) -> None:
    """Write an entry elsewhere and move it into place: it is whole, or absent."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=entry.parent, prefix=".new-") as staging:
        whole = Path(staging) / entry.name
        whole.mkdir()
        for field, array in arrays._asdict().items():
            np.save(whole / f"{field}.npy", array, allow_pickle=False)
        shutil.rmtree(entry, ignore_errors=True)  # a damaged one
        whole.rename(entry)
