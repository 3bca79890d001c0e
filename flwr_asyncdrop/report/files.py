"""Finding histories in folders, whatever is a link there."""

import os
from collections.abc import Iterator
from pathlib import Path

HISTORY = "history.jsonl"


def histories(folder: Path) -> list[Path]:
    """Return the histories in a folder and below, absolute and each once.

    Links to folders are followed. What lies there, too, has its own name.
    """
    top = folder.resolve() if ".." in folder.parts else folder.absolute()
    found: dict[str, Path] = {}
    for follow in (False, True):
        for path in _walk(top, follow=follow):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def _walk(top: Path, *, follow: bool) -> Iterator[Path]:
    seen: set[str] = set()
    for place, folders, files in os.walk(top, followlinks=follow):
        real = os.path.realpath(place)
        if real in seen:  # links may go round
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        if HISTORY in files:
            yield Path(place) / HISTORY
