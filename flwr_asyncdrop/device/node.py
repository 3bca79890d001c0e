"""Flower's SuperNode, at another pace and with a trainer for its tasks."""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from flwr_asyncdrop.device import shim
from flwr_asyncdrop.device.doorbell import Doorbell
from flwr_asyncdrop.device.programs import load_program, program_path, write_program
from flwr_asyncdrop.device.supervisor import Supervisor
from flwr_asyncdrop.device.thin import thin_command
from flwr_asyncdrop.flower_internals.pace import NodePace, pace_node, warn_of_plain_pace
from flwr_asyncdrop.flower_internals.pulls import pull_sooner

_PROGRAM = "flower-supernode"
_LOOP = "flwr.supernode.start_client_internal"


@dataclass(frozen=True)
class Settings:
    """What is different from Flower's own SuperNode.

    Attributes
    ----------
    poll : float
        Least seconds between two looks for a task; 0 for Flower's own pace.
    warm : bool
        Whether tasks are handed to a trainer.
    preload : tuple of str
        Modules that the trainer imports.
    """

    poll: float
    warm: bool
    preload: tuple[str, ...]


def node_command(settings: Settings, arguments: Sequence[str]) -> list[str]:
    """Return the command of a SuperNode with these arguments of Flower's."""
    return thin_command("node", json.dumps(asdict(settings)), *arguments)


def main(arguments: Sequence[str]) -> object:
    """Run Flower's SuperNode until it ends.

    Parameters
    ----------
    arguments : sequence of str
        The `Settings` as JSON, and the arguments of ``flower-supernode``.
    """
    settings = Settings(**json.loads(arguments[0]))
    with private_folder() as folder, ExitStack() as stack:
        os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ.get('PATH', '')}"
        if settings.poll:
            set_pace(folder, settings.poll)
        if settings.warm:
            stack.enter_context(trainer(folder, settings.preload))
        sys.argv = [_PROGRAM, *arguments[1:]]
        return load_program(_PROGRAM)()


@contextmanager
def private_folder() -> Iterator[Path]:
    """Make a folder that only this user can enter, and remove it in the end."""
    with tempfile.TemporaryDirectory(
        prefix="asyncdrop-", ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def trainer(folder: Path, preload: Sequence[str]) -> Supervisor:
    """Start a trainer, and put what hands tasks to it in the place of Flower's program.

    Parameters
    ----------
    folder : Path
        The first one on the PATH of whoever starts tasks.
    preload : sequence of str
        Modules that the trainer imports.
    """
    path = folder / "trainer.socket"
    name = "flwr-clientapp"
    hand_over = [sys.executable, "-I", "-S", shim.__file__]
    write_program(folder / name, [*hand_over, str(path), str(program_path(name))])
    return Supervisor(thin_command("trainer", str(path), *preload))


def set_pace(folder: Path, least: float) -> None:
    """Change the pace of the SuperNode's loop, and of the SuperExec that it starts."""
    doorbell = Doorbell(folder / "task.pipe")
    loop = importlib.import_module(_LOOP)
    if not pace_node(loop, NodePace(least, doorbell.ring)) or not pull_sooner(loop):
        warn_of_plain_pace(_LOOP)
        return
    name = "flower-superexec"
    write_program(folder / name, thin_command("superexec", str(folder / "task.pipe")))
