"""Flower's SuperExec, which the SuperNode wakes when there is a task."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flwr_asyncdrop.device.doorbell import Doorbell
from flwr_asyncdrop.device.programs import load_program
from flwr_asyncdrop.flower_internals.loops import pace_superexec
from flwr_asyncdrop.flower_internals.pace import WokenPace

_PROGRAM = "flower-superexec"


def main(arguments: Sequence[str]) -> object:
    """Run Flower's SuperExec: the pipe that wakes it, and its own arguments."""
    pipe, *own = arguments
    try:
        bell = Doorbell(Path(pipe))
    except FileNotFoundError:
        return 0  # the SuperNode, whose folder it is in, has ended by now
    program = load_program(_PROGRAM)
    pace_superexec(WokenPace(bell.wait))
    sys.argv = [_PROGRAM, *own]
    return program()
