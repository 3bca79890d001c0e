"""The command ``asyncdrop``. A command's module is imported when it is chosen."""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType, ModuleType

from flwr_asyncdrop.exceptions import AsyncDropError, MissingExtraError

_FAILED, _INTERRUPTED = 1, 130

_COMMANDS = {
    "simulate": "one run of one algorithm",
    "compare": "algorithms and seeds side by side",
    "report": "table, figures and a page of what was compared",
    "doctor": "check the setup and suggest fixes",
    "supernode": "Flower's SuperNode, which answers sooner",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    It is 0, or 1 after an error, or 130 after Ctrl-C. SIGTERM raises SystemExit(143).
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] not in _COMMANDS:
        _explain(words)
    try:
        with _orderly_termination():
            return _run(*words)
    except AsyncDropError as error:
        sys.stderr.write(f"asyncdrop: {error}\n")
        return _FAILED
    except KeyboardInterrupt:
        sys.stderr.write("asyncdrop: interrupted\n")
        return _INTERRUPTED


def _run(name: str, *words: str) -> int:
    # An algorithm, a data set or a model can lie there.
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    command = _command(name)
    parser = argparse.ArgumentParser(prog=f"asyncdrop {name}", allow_abbrev=False)
    command.add_arguments(parser, words)
    parsed, rest = parser.parse_known_args(words)
    if rest and not getattr(command, "PASSES_ON", False):
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    parsed.rest = rest
    return int(command.run(parsed))


def _command(name: str) -> ModuleType:
    try:
        return import_module(f"flwr_asyncdrop.cli.{name}")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "flwr_asyncdrop"):
            raise
        raise MissingExtraError(
            f"{package} is not installed: pip install 'flwr-asyncdrop[all]', and see "
            "`asyncdrop doctor`",
            name=package,
        ) from error


def _explain(words: Sequence[str]) -> None:
    """Print the help, or what is wrong, and exit."""
    parser = argparse.ArgumentParser(
        prog="asyncdrop",
        description="Asynchronous federated learning on simulated and real fleets.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.parse_args(words)


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
