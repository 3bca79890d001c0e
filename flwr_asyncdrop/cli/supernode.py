"""``asyncdrop supernode``: Flower's SuperNode with a short way from task to reply."""

import argparse
from typing import NoReturn

from flwr_asyncdrop.device.command import (
    DESCRIPTION,
    USAGE,
    add_arguments,
    become_node,
)
from flwr_asyncdrop.exceptions import ConfigError


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "supernode",
        help="Flower's SuperNode, which answers sooner",
        description=DESCRIPTION,
        usage=USAGE.format("asyncdrop supernode"),
        allow_abbrev=False,
    )
    add_arguments(parser)
    parser.set_defaults(command=_main, passes_on=True)


def _main(arguments: argparse.Namespace) -> NoReturn:
    try:
        become_node(arguments, arguments.rest)
    except (ValueError, LookupError) as error:
        raise ConfigError(str(error)) from error
