"""The flags of `simulate` and `compare` that are no run-config keys."""

import argparse
from collections.abc import Callable
from types import MappingProxyType

from flwr_asyncdrop.cli.presets import TASKS

DEFAULTS = MappingProxyType({"task": "digits", "devices": 104})
"""What `add_task`'s flags are if they are not given."""


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add ``--task`` and ``--devices``."""
    parser.add_argument(
        "--task",
        choices=tuple(TASKS),
        default=DEFAULTS["task"],
        metavar="TASK",
        help="preset of the keys below, which override it: "
        f"{', '.join(TASKS)} (default: {DEFAULTS['task']})",
    )
    parser.add_argument(
        "--devices",
        type=at_least(1),
        default=DEFAULTS["devices"],
        metavar="INT",
        help=f"size of the simulated fleet (default: {DEFAULTS['devices']})",
    )


def at_least(bound: int) -> Callable[[str], int]:
    """Return the argparse type of an integer of at least `bound`."""

    def integer(text: str) -> int:
        number = int(text)
        if number < bound:
            raise argparse.ArgumentTypeError(f"{number} must be at least {bound}")
        return number

    return integer
