"""The command ``asyncdrop``."""

import argparse
import sys
from collections.abc import Sequence

from flwr_asyncdrop.cli import compare, report, simulate
from flwr_asyncdrop.exceptions import AsyncDropError

__all__ = ["main"]

_FAILED, _INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its flags; by default those of this process.

    Returns
    -------
    int
        The exit status: 0, 1 if something went wrong, 130 after Ctrl-C.
    """
    parser = argparse.ArgumentParser(
        prog="asyncdrop",
        description="Asynchronous federated learning on a simulated fleet.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (simulate, compare, report):
        command.add_parser(commands)
    parsed = parser.parse_args(arguments)
    try:
        status: int = parsed.command(parsed)
    except AsyncDropError as error:
        sys.stderr.write(f"asyncdrop: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        sys.stderr.write("asyncdrop: interrupted\n")
        return _INTERRUPTED
    return status
