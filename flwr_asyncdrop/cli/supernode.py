"""``asyncdrop supernode``: Flower's SuperNode with a short way from task to reply."""

import argparse
import os
import sys

from flwr_asyncdrop.device.node import Settings, node_command
from flwr_asyncdrop.device.programs import program_path
from flwr_asyncdrop.exceptions import ConfigError

__all__ = ["add_parser"]

_PROGRAMS = ("flower-supernode", "flower-superexec", "flwr-clientapp")
_PRELOAD = ("torch",)
# Only Linux tells the two ends of a Unix socket whose process the other one is, as
# the trainer wants to know.
_CAN_BE_WARM = sys.platform == "linux"


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "supernode",
        help="Flower's SuperNode, which answers sooner",
        description="Run flower-supernode with its own arguments (flower-supernode "
        "--help lists them). Tasks are done by processes that are forked from one in "
        "which everything is imported, and found without long pauses. "
        "docs/turnaround.md says what it saves and costs.",
        usage="asyncdrop supernode [--poll SECONDS] [--no-warm] [--preload MODULE] "
        "ARGUMENTS OF FLOWER-SUPERNODE",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--poll",
        type=float,
        default=0.1,
        metavar="SECONDS",
        help="least time between two looks for a task (default: 0.1); it grows to "
        "Flower's own 3 s while none comes; 0: Flower's own pace",
    )
    parser.add_argument(
        "--no-warm",
        action="store_true",
        help="start a process for every task, as Flower does",
    )
    parser.add_argument(
        "--preload",
        action="append",
        default=[],
        metavar="MODULE",
        help="what the tasks' processes have imported already, beside torch; can be "
        "given more than once; nothing that starts threads or uses the GPU",
    )
    parser.set_defaults(command=_main, passes_on=True)


def _main(arguments: argparse.Namespace) -> int:
    """Become the SuperNode, so that it has this process's number and its signals."""
    if not 0 <= arguments.poll < float("inf"):
        raise ConfigError(f"--poll {arguments.poll:g} must be seconds, or 0")
    for name in _PROGRAMS:
        if program_path(name) is None:
            raise ConfigError(f"there is no program {name}: pip install flwr")
    settings = Settings(
        poll=arguments.poll,
        warm=not arguments.no_warm and _CAN_BE_WARM,
        preload=(*_PRELOAD, *arguments.preload),
    )
    rest = arguments.rest[1:] if arguments.rest[:1] == ["--"] else arguments.rest
    command = node_command(settings, rest)
    os.execv(command[0], command)  # noqa: S606  # no shell wanted
