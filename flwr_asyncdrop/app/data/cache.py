"""Arrays that take seconds to read, kept in the user's cache folder."""

import hashlib
import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

Tensors = dict[str, Tensor]

_STAGING = ".new-"
_ABANDONED_AFTER = 3600.0  # seconds; writing an entry takes one or two


def cached(key: str, paths: list[Path], read: Callable[[], Tensors]) -> Tensors:
    """Return what `read` returns, from the cache if it is there already.

    CIFAR's archive and IMDB take 6 s of CPU each to decode; from the cache either takes
    a millisecond. An entry is valid for one `key`, which is part of its file name, and
    for files of the same place, size and time of change. It is mapped into memory, so
    that processes share it. Without a usable cache, `read` is called each time.
    """
    try:
        entry = cache_folder() / f"{key}-{_fingerprint(paths)}.safetensors"
    except RuntimeError:  # a user without a home
        return read()
    # Not there yet, not allowed, or damaged.
    with suppress(OSError, SafetensorError):
        return load_file(entry)
    tensors = read()
    with suppress(OSError, SafetensorError):
        _store(entry, tensors)
    return tensors


def cache_folder() -> Path:
    """Return ``$XDG_CACHE_HOME/flwr-asyncdrop``, by default under ``~/.cache``.

    What lies there may be deleted at any time. A relative ``XDG_CACHE_HOME`` is
    ignored, as its specification says.
    """
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (
        Path(root) if Path(root).is_absolute() else Path.home() / ".cache"
    ) / "flwr-asyncdrop"


def _fingerprint(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        status = path.stat()
        facts = f"\0{status.st_size}\0{status.st_mtime_ns}\0"
        digest.update(os.fsencode(path) + facts.encode())
    return digest.hexdigest()[:16]


def _store(entry: Path, tensors: Tensors) -> None:
    """Write an entry elsewhere and move it into place: it is whole, or absent."""
    entry.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(entry.parent)
    with TemporaryDirectory(dir=entry.parent, prefix=_STAGING) as staging:
        whole = Path(staging) / entry.name
        save_file(tensors, whole)
        whole.replace(entry)


def _remove_abandoned(folder: Path) -> None:
    """Delete what processes that were killed had begun to write."""
    for staging in folder.glob(f"{_STAGING}*"):
        with suppress(OSError):  # another process may delete it as well
            if time.time() - staging.stat().st_mtime > _ABANDONED_AFTER:
                shutil.rmtree(staging)
