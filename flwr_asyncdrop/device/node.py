"""Flower's SuperNode, at another pace and with a trainer for its tasks."""

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr_asyncdrop.device import shim
from flwr_asyncdrop.device.doorbell import Doorbell
from flwr_asyncdrop.device.private import private_folder
from flwr_asyncdrop.device.programs import load_program, program_path, write_program
from flwr_asyncdrop.device.supervisor import Supervisor
from flwr_asyncdrop.device.thin import thin_command
from flwr_asyncdrop.flower_internals.loops import pace_node
from flwr_asyncdrop.flower_internals.pace import NodePace

_PROGRAM = "flower-supernode"
_SOCKET, _LONGEST_ADDRESS = "trainer.socket", 107  # bytes, on Linux


@dataclass(frozen=True)
class Settings:
    """What is different from Flower's own SuperNode.

    `poll` are the least seconds between two looks for a task, 0 for Flower's own pace,
    and `max_poll` the most, None for Flower's own.
    If `warm`, tasks are handed to a trainer, which has imported the modules `preload`.
    """

    poll: float
    warm: bool
    preload: tuple[str, ...]
    max_poll: float | None = None


def node_command(settings: Settings, arguments: Sequence[str]) -> list[str]:
    """Return the command of a SuperNode with these arguments of Flower's."""
    return thin_command("node", json.dumps(asdict(settings)), *arguments)


def main(arguments: Sequence[str]) -> object:
    """Run Flower's SuperNode: the `Settings` as JSON, and its own arguments."""
    settings = Settings(**json.loads(arguments[0]))
    with ExitStack() as stack:
        try:
            prepare(settings, stack)
        except OSError as error:  # no room, no right to write, or no memory
            logging.getLogger("flwr").warning(
                "tasks start the plain way, as the trainer's files cannot be made "
                "(%s): let TMPDIR name a folder with room in it",
                error,
            )
        sys.argv = [_PROGRAM, *arguments[1:]]
        return load_program(_PROGRAM)()


def prepare(settings: Settings, stack: ExitStack) -> None:
    """Put what is faster in the place of Flower's own, until the stack is left.

    OSError if the files for it cannot be made.
    """
    folder = stack.enter_context(private_folder())
    if settings.poll:
        set_pace(folder, settings.poll, settings.max_poll)
    if settings.warm and has_address(folder):
        stack.enter_context(trainer(folder, settings.preload))
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"


def has_address(folder: Path) -> bool:
    """Return whether a trainer in a folder can have a socket, and say if not."""
    fits = len(os.fsencode(folder / _SOCKET)) <= _LONGEST_ADDRESS
    if not fits:
        logging.getLogger("flwr").warning(
            "the path %s is too long for a socket, so tasks start the plain way: let "
            "TMPDIR name a folder with a shorter one",
            folder,
        )
    return fits


def trainer(folder: Path, preload: Sequence[str]) -> Supervisor:
    """Start a trainer, and put what hands tasks to it in the place of Flower's program.

    `folder` must come first on the PATH of whoever starts tasks.
    """
    path = folder / _SOCKET
    name = "flwr-clientapp"
    hand_over = [sys.executable, "-I", "-S", shim.__file__]
    write_program(folder / name, [*hand_over, str(path), str(program_path(name))])
    return Supervisor(thin_command("trainer", str(path), *preload))


def set_pace(folder: Path, least: float, longest: float | None) -> None:
    """Change the pace of the SuperNode's loop, and of the SuperExec that it starts."""
    pipe = folder / "task.pipe"
    if pace_node(NodePace(least, Doorbell(pipe).ring, longest=longest)):
        command = thin_command("superexec", str(pipe))
        write_program(folder / "flower-superexec", command)
