"""The flags of `simulate` and `compare` that are no run-config keys."""

import argparse
from collections.abc import Callable

from flwr_asyncdrop.cli.tasks import TASKS

__all__ = ["add_task", "at_least"]


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add ``--task`` and ``--devices``."""
    parser.add_argument(
        "--task",
        choices=tuple(TASKS),
        default="digits",
        metavar="TASK",
        help="preset of the keys below, which override it: "
        f"{', '.join(TASKS)} (default: digits)",
    )
    parser.add_argument(
        "--devices",
        type=at_least(1),
        default=104,
        metavar="INT",
        help="size of the simulated fleet (default: 104)",
    )


def at_least(bound: int) -> Callable[[str], int]:
    """Return the argparse type of an integer of at least `bound`."""

    def integer(text: str) -> int:
        number = int(text)
        if number < bound:
            raise argparse.ArgumentTypeError(f"{number} must be at least {bound}")
        return number

    return integer
