"""Flower's SuperExec, which the SuperNode wakes when there is a task."""

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from flwr_asyncdrop.device.doorbell import Doorbell
from flwr_asyncdrop.device.programs import load_program
from flwr_asyncdrop.flower_internals.pace import (
    WokenPace,
    pace_superexec,
    warn_of_plain_pace,
)

_PROGRAM = "flower-superexec"
_LOOP = "flwr.supercore.superexec.run_superexec"


def main(arguments: Sequence[str]) -> object:
    """Run Flower's SuperExec until it ends.

    Parameters
    ----------
    arguments : sequence of str
        Path of the pipe that wakes it, and the arguments of ``flower-superexec``.
    """
    pipe, *own = arguments
    if not Path(pipe).parent.exists():
        return 0  # the SuperNode, whose folder it is, has ended by now
    program = load_program(_PROGRAM)
    module = importlib.import_module(_LOOP)
    if not pace_superexec(module, WokenPace(Doorbell(Path(pipe)).wait)):
        warn_of_plain_pace(_LOOP)
    sys.argv = [_PROGRAM, *own]
    return program()
