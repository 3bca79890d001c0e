"""Flower's programs: where they are, how they run, and what stands in for them."""

import logging
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path


def program_path(name: str) -> Path | None:
    """Return where a program is: beside this Python, or on the PATH."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    return None if found is None else Path(found)


def load_program(name: str) -> Callable[[], object]:
    """Return the function that a program of Flower's calls, to call it here."""
    for entry in entry_points(group="console_scripts", name=name):
        function: Callable[[], object] = entry.load()
        return function
    raise LookupError(f"no program {name!r} is installed: pip install flwr")


def write_program(path: Path, command: Sequence[str]) -> None:
    """Write a program that runs a command, with its own arguments at the end."""
    path.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    path.chmod(0o700)
    if not os.access(path, os.X_OK):
        logging.getLogger("flwr").warning(
            "no program can be started from %s, so %s is Flower's own: let TMPDIR name "
            "a folder on a file system that is not mounted noexec",
            path.parent,
            path.name,
        )
