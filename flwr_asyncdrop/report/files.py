"""Finding histories in folders, whatever is a link there."""

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flwr_asyncdrop.exceptions import DataError

HISTORY = "history.jsonl"
SEED = "seed-"
"""How the folder of a run of a comparison begins, in that of its algorithm."""

OF_COMPARISONS = "*/"
"""Where the runs of a comparison are: in folders of algorithms."""

OF_SEARCHES = "*/*/"
"""Where those of a tuning or an advice are: a rung has folders of algorithms."""


def histories(folder: Path, *, of_others: bool = False) -> list[Path]:
    """Return the histories in a folder and below, absolute and each once.

    Links to folders are followed. What lies there, too, has its own name. DataError if
    this user may not look into a folder, unless some may be `of_others`, or for a file.
    """
    top = folder.resolve() if ".." in folder.parts else folder.absolute()
    found: dict[str, Path] = {}
    for follow in (False, True):
        for path in _walk(top, follow, None if of_others else _refuse):
            found.setdefault(os.path.realpath(path), path)
    return sorted(found.values())


def run_of_comparison(
    folder: Path, places: Sequence[str] = (OF_COMPARISONS, OF_SEARCHES)
) -> Path | None:
    """Return the folder of a run if the folder is a comparison's, tuning's or advice's.

    Or that of an algorithm in it. It is seen from there, e.g. ``seed-0``,
    ``fedbuff/seed-0``, or ``rung-1/fedbuff/seed-0``. `places` are those of the two
    kinds that are looked for.
    """
    for above in ("", *places):
        if found := min(folder.glob(f"{above}{SEED}*/{HISTORY}"), default=None):
            return found.parent.relative_to(folder)
    return None


def _walk(
    top: Path, follow: bool, refuse: Callable[[OSError], None] | None
) -> Iterator[Path]:
    seen: set[str] = set()
    for place, folders, files in os.walk(top, onerror=refuse, followlinks=follow):
        real = os.path.realpath(place)
        if real in seen:  # links may go round
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        if HISTORY in files:
            yield Path(place) / HISTORY


def _refuse(error: OSError) -> None:
    if error.errno == errno.ENOTDIR:
        raise DataError(
            f"{error.filename} is no folder: name that of a run, or one above it"
        ) from error
    # It may have gone since, or be a link that goes round.
    if error.errno not in (errno.ENOENT, errno.ELOOP):
        raise DataError(
            f"cannot look for runs in {error.filename} ({error.strerror}): make that "
            "possible, or name the folders that this user may read"
        ) from error
