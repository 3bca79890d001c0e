"""Where a data set's files lie, and their bytes, plain or gzip'd."""

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from flwr_asyncdrop.exceptions import DataError


@dataclass(frozen=True)
class Layout:
    """The files of one data set, in one of the ways in which it comes.

    Parameters
    ----------
    folder : str
        The folder of the files under data-dir, with forward slashes.
    files : tuple of str
        Their names, or those of folders of files. A file may also lie there gzip'd,
        with ``.gz`` added.
    torchvision : str, optional
        The class of ``torchvision.datasets`` that downloads them into this layout.
    """

    folder: str
    files: tuple[str, ...]
    torchvision: str | None = None

    def locate(self, data_dir: Path) -> Path:
        """Choose the folder that holds most of the files.

        ``data_dir`` is the root that holds :attr:`folder`, that folder itself, or one
        between the two. If none holds any, it is taken for the root.
        """
        parts = PurePosixPath(self.folder).parts
        candidates = (data_dir.joinpath(*parts[i:]) for i in range(len(parts) + 1))
        return min(candidates, key=lambda folder: len(self.missing(folder)))

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Name the files that ``folder`` lacks."""
        return tuple(f for f in self.files if find_file(folder, f) is None)

    def paths(self, folder: Path) -> Iterator[Path]:
        """List all files that are there, those inside folders too, in a fixed order."""
        for path in filter(None, (find_file(folder, name) for name in self.files)):
            yield from sorted(path.iterdir()) if path.is_dir() else (path,)


def find_file(folder: Path, name: str) -> Path | None:
    """Find ``name`` in ``folder``, plain or else gzip'd."""
    choices = (folder / name, folder / f"{name}.gz")
    return next((path for path in choices if path.exists()), None)


def read_file(folder: Path, name: str) -> bytes:
    """Read the whole of a file that may be gzip'd.

    Raises
    ------
    DataError
        The file is missing, unreadable, or its compression is damaged.
    """
    path = find_file(folder, name)
    if path is None:
        msg = f"no {name}[.gz] in {folder}; put it back, or set download=true"
        raise DataError(msg)
    try:
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(folder, name, describe(error)) from error
    except OSError as error:
        msg = f"cannot read {path} ({describe(error)}); check its permissions"
        raise DataError(msg) from error


def damaged(folder: Path, name: str, reason: str) -> DataError:
    """Make the error for a file whose content is not what it should be."""
    path = find_file(folder, name) or folder / name
    return DataError(
        f"{path} is damaged ({reason}); delete it and fetch it again, "
        "by hand or with download=true"
    )


def describe(error: Exception) -> str:
    """Put an exception of somebody else's in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
