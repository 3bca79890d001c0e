"""The mark of a run whose files are all there: ``done.json``, written last."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from flwr_asyncdrop.storage.whole import write_whole

DONE = "done.json"
_FORMAT = "flwr-asyncdrop run"


@dataclass(frozen=True)
class FileDigest:
    """What a file was when it was marked."""

    num_bytes: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return what a file is now."""
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(file.tell(), digest)


def mark_done(folder: Path, names: Iterable[str]) -> None:
    """Write the mark, with the digests of the files of those names."""
    files = {name: asdict(FileDigest.of(folder / name)) for name in names}
    text = json.dumps({"format": _FORMAT, "files": files}, indent=1)
    write_whole(folder / DONE, f"{text}\n".encode())


def read_mark(folder: Path) -> Mapping[str, FileDigest] | None:
    """Return the files that the mark of a folder names; None if there is no mark."""
    try:
        found = json.loads((folder / DONE).read_bytes())
        if found["format"] != _FORMAT:
            return None
        return {name: FileDigest(**entry) for name, entry in found["files"].items()}
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
    ):
        return None


def is_as_marked(folder: Path, name: str) -> bool:
    """Return whether a file is what it was when its folder was marked, if it was."""
    mark = read_mark(folder)
    if mark is None or name not in mark:
        return True
    try:
        return FileDigest.of(folder / name) == mark[name]
    except OSError:
        return False
