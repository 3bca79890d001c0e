"""The command ``asyncdrop``."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from flwr_asyncdrop.cli import compare, doctor, report, simulate, supernode
from flwr_asyncdrop.exceptions import AsyncDropError

_FAILED, _INTERRUPTED = 1, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """RunSpec a command.

    Parameters
    ----------
    arguments : sequence of str, optional
        The command and its flags; by default those of this process.

    Returns
    -------
    int
        The exit status: 0, 1 if something went wrong, 130 after Ctrl-C. After SIGTERM
        it is 143, and the process ends by ``SystemExit``.
    """
    parser = argparse.ArgumentParser(
        prog="asyncdrop",
        description="Asynchronous federated learning on simulated and real fleets.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in (simulate, compare, report, doctor, supernode):
        command.add_parser(commands)
    parsed, rest = parser.parse_known_args(arguments)
    parsed.rest = rest
    if rest and not getattr(parsed, "passes_on", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        with _orderly_termination():
            status: int = parsed.command(parsed)
    except AsyncDropError as error:
        sys.stderr.write(f"asyncdrop: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        sys.stderr.write("asyncdrop: interrupted\n")
        return _INTERRUPTED
    return status


@contextmanager
def _orderly_termination() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that processes and the terminal are tidied."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(signum: int, _: FrameType | None) -> None:
    raise SystemExit(128 + signum)
