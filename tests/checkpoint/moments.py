"""The moments at which a process changes something on the disk.

A moment is just before a file is opened for writing, renamed or deleted, or a folder
made or deleted: between two of them the disk is as it is.
"""

import os
import signal
import sys
from pathlib import Path

_FILES = (
    ".lock",
    ".history.jsonl.lock",
    "history.jsonl",
    "model.safetensors",
    "run.png",
    "done.json",
    "checkpoints",
    "state.json",
)
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR


def at_moment(number: int, notes: Path | None) -> None:
    """Kill this process at its moment of that number, from 1; 0 for none.

    Each moment gets a line in `notes`.
    """
    count = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        if event == "open":
            if not isinstance(arguments[2], int) or not arguments[2] & _WRITES:
                return
        elif event not in _CHANGES:
            return
        path = str(arguments[0])
        if path == str(notes) or not any(name in path for name in _FILES):
            return
        count += 1
        if notes is not None:
            with notes.open("a") as file:
                file.write(f"{event} {path}\n")
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
