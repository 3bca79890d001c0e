"""The command that becomes a SuperNode: its flags, and the start."""

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from flwr_asyncdrop.device.node import Settings, node_command
from flwr_asyncdrop.device.programs import program_path

DESCRIPTION = (
    "Run flower-supernode with its own arguments (flower-supernode --help lists them). "
    "Tasks are done by processes that are forked from one in which everything is "
    "imported, and found without long pauses. docs/turnaround.md says what it saves "
    "and costs."
)
USAGE = (
    "{} [--poll SECONDS] [--max-poll SECONDS] [--no-warm] [--preload MODULE] "
    "ARGUMENTS OF FLOWER-SUPERNODE"
)

_PROGRAMS = ("flower-supernode", "flower-superexec", "flwr-clientapp")
_LONGEST_POLL = 3600
_PRELOAD = ("torch",)
# Only Linux tells the two ends of a Unix socket whose process the other one is, as
# the trainer wants to know.
_CAN_BE_WARM = sys.platform == "linux"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not Flower's."""
    parser.add_argument(
        "--poll",
        type=float,
        default=0.1,
        metavar="SECONDS",
        help="least time between two looks for a task (default: 0.1); it grows to "
        "Flower's own 3 s while none comes; 0: Flower's own pace",
    )
    parser.add_argument(
        "--max-poll",
        type=float,
        metavar="SECONDS",
        help="most time between two looks for a task, in place of Flower's own 3 s: a "
        "tenth of the wait so far, so 30 is for fleets of more than 300 devices",
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


def become_node(arguments: argparse.Namespace, rest: Sequence[str]) -> NoReturn:
    """Become the SuperNode, so that it has this process's number and its signals.

    `rest` are the arguments of ``flower-supernode``, after ``--`` or not. ValueError: a
    flag is wrong. LookupError: Flower's programs are not there.
    """
    if not 0 <= arguments.poll <= _LONGEST_POLL:
        raise ValueError(
            f"--poll {arguments.poll:g} must be seconds, {_LONGEST_POLL} at most, or 0"
        )
    max_poll = arguments.max_poll
    if max_poll is not None:
        if not arguments.poll:
            raise ValueError(
                "--max-poll cannot be with --poll 0, which is Flower's own pace"
            )
        if not arguments.poll <= max_poll <= _LONGEST_POLL:
            raise ValueError(
                f"--max-poll {max_poll:g} must be seconds, --poll ({arguments.poll:g}) "
                f"at least and {_LONGEST_POLL} at most"
            )
    for module in arguments.preload:
        if not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(f"--preload {module!r} is no name of a module")
    for word in rest:
        if "\0" in word:
            raise ValueError(f"{word!r} has a null character, which no program can get")
    for name in _PROGRAMS:
        if program_path(name) is None:
            raise LookupError(f"there is no program {name}: pip install flwr")
    settings = Settings(
        poll=arguments.poll,
        warm=not arguments.no_warm and _CAN_BE_WARM,
        preload=(*_PRELOAD, *arguments.preload),
        max_poll=max_poll,
    )
    own = rest[1:] if rest[:1] == ["--"] else rest
    command = node_command(settings, own)
    try:
        os.execv(command[0], command)  # noqa: S606  # no shell wanted
    except OSError as error:
        raise ValueError(
            f"{command[0]} cannot be started with these arguments: {error.strerror}"
        ) from error
