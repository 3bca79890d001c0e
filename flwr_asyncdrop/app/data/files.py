"""Where a data set's files lie, and their bytes, plain or gzip'd."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.extras import require
from flwr_asyncdrop.readable import one_line


class Arrays(NamedTuple):
    """What a reader returns: uint8 images or int16 token ids, and int64 labels."""

    train_x: NDArray[Any]
    train_y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]


@dataclass(frozen=True)
class Source:
    """One of the ways in which a data set's files come.

    `read` reads `files`, which lie in `folder` under data-dir: plain, gzip'd with
    ``.gz`` added, or folders of files. `reader` is its name and version: another one
    whenever it reads something else. `torchvision` is the class of
    ``torchvision.datasets`` that downloads them, if there is one.
    """

    reader: str
    folder: str
    files: tuple[str, ...]
    read: Callable[[Path], Arrays]
    torchvision: str = ""

    def locate(self, data_dir: Path) -> Path:
        """Return the folder that holds most of the files.

        `data_dir` is the root that holds `folder`, that folder itself, or one between
        the two. If none holds any, it is taken for the root.
        """
        parts = PurePosixPath(self.folder).parts
        candidates = (data_dir.joinpath(*parts[i:]) for i in range(len(parts) + 1))
        return min(candidates, key=lambda folder: len(self.missing(folder)))

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Return the names of the files that `folder` lacks."""
        return tuple(name for name in self.files if find_file(folder, name) is None)

    def paths(self, folder: Path) -> Iterator[Path]:
        """Yield all files that are there, those inside folders too, in fixed order."""
        for path in filter(None, (find_file(folder, name) for name in self.files)):
            yield from sorted(path.iterdir()) if path.is_dir() else (path,)


def find_file(folder: Path, name: str) -> Path | None:
    """Return where a file is, plain or else gzip'd; None if it is nowhere."""
    choices = (folder / name, folder / f"{name}.gz")
    return next((path for path in choices if path.exists()), None)


def read_file(folder: Path, name: str) -> bytes:
    """Return the bytes of a file that may be gzip'd."""
    path = find_file(folder, name)
    if path is None:
        raise DataError(f"no {name}[.gz] in {folder}; put it back")
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, one_line(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """Return the error for a file or a folder that the operating system refuses."""
    return DataError(f"cannot read {path} ({one_line(error)}); check its permissions")


def damaged(path: Path, reason: str) -> DataError:
    """Return the error for a file whose content is not what it should be."""
    if not path.exists():
        path = find_file(path.parent, path.name) or path
    return DataError(f"{path} is damaged ({reason}); delete it and fetch it again")


def download(source: Source, data_dir: Path) -> Path:
    """Fetch a data set's files; return the folder under `data_dir` that holds them.

    They are fetched elsewhere and moved into place one by one, whole: nobody sees half
    a file, and two processes that fetch at once do no harm.
    """
    folder = data_dir / source.folder
    if not source.torchvision:
        raise DataError(
            f"torchvision has no {source.folder}: put it in {data_dir} by hand"
        )
    try:
        kind = getattr(require("torchvision.datasets", "data"), source.torchvision)
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=data_dir, prefix=".download-") as staging:
            kind(staging, download=True)
            for name in source.files:
                path = find_file(Path(staging) / source.folder, name)
                if path is None:
                    raise FileNotFoundError(f"torchvision brought no {name}")
                path.replace(folder / path.name)
    # What torchvision's mirrors, its archives and the disk raise, or torchvision
    # itself, if it was built for another torch.
    except Exception as error:
        if isinstance(error.__cause__, ModuleNotFoundError):  # it is not installed
            raise
        raise DataError(
            f"could not download {source.torchvision} to {data_dir} "
            f"({one_line(error)}); put its files in {folder} by hand"
        ) from error
    return folder
