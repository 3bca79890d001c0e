"""``asyncdrop supernode``: Flower's SuperNode with a short way from task to reply."""

import argparse
from collections.abc import Sequence
from typing import NoReturn

from flwr_asyncdrop.device import command
from flwr_asyncdrop.exceptions import ConfigError

PASSES_ON = True
"""Whether the command takes arguments that it does not know."""


def add_arguments(parser: argparse.ArgumentParser, _: Sequence[str]) -> None:
    """Describe the command."""
    parser.description = command.DESCRIPTION
    parser.usage = command.USAGE.format("asyncdrop supernode")
    command.add_arguments(parser)


def run(arguments: argparse.Namespace) -> NoReturn:
    """Become the SuperNode."""
    try:
        command.become_node(arguments, arguments.rest)
    except (ValueError, LookupError) as error:
        raise ConfigError(str(error)) from error
