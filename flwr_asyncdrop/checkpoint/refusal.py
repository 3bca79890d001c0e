"""Why a run cannot be resumed, said in the place of its checkpoints."""

import json
from pathlib import Path

from flwr_asyncdrop.storage.whole import write_whole

_FILE = "unresumable.json"
_REASON = "reason"


def refuse(folder: Path, reason: str) -> None:
    """Write down, in a folder of checkpoints, why their run cannot be resumed."""
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / _FILE, json.dumps({_REASON: reason}).encode())


def refusal_of(folder: Path) -> str:
    """Return why the run of a folder of checkpoints cannot be resumed, or ""."""
    try:
        return str(json.loads((folder / _FILE).read_text(encoding="utf-8"))[_REASON])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""


def forget_refusal(folder: Path) -> None:
    """Delete what was written of another run, or of one that is over."""
    if (file := folder / _FILE).exists():
        file.unlink()
