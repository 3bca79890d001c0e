"""The command ``asyncdrop``. A command's module is imported when it is chosen."""

import os
import platform
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import FrameType, ModuleType

from flwr_asyncdrop.cli.message import say
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.cli.streams import (
    UnwrittenError,
    open_what_is_closed,
    output_in_full,
    print_no_more,
)
from flwr_asyncdrop.exceptions import (
    AsyncDropError,
    CheckpointError,
    ConfigError,
    DataError,
    MissingExtraError,
    UnsupportedModelError,
)
from flwr_asyncdrop.paths import tidied
from flwr_asyncdrop.readable import one_line
from flwr_asyncdrop.server.signals import ENDINGS
from flwr_asyncdrop.shortage import shortage
from flwr_asyncdrop.versions import PACKAGE, version_of

_FAILED, _REFUSED, _INTERRUPTED = 1, 2, 130
# What was asked for cannot be done; all else is a run that failed.
_REFUSALS = (
    ConfigError,
    CheckpointError,
    DataError,
    MissingExtraError,
    UnsupportedModelError,
)

_COMMANDS = {
    "init": "a small Flower project that runs",
    "simulate": "one run of one algorithm",
    "compare": "algorithms and seeds side by side",
    "tune": "settings of algorithms, with the same budget for all",
    "advise": "the algorithm and settings that suit a fleet",
    "watch": "how far a run is that another process does",
    "report": "table, figures and a page of what was compared",
    "doctor": "check the setup and suggest fixes",
    "supernode": "Flower's SuperNode, which answers sooner",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status.

    It is 0; 2 if what was asked for is wrong, 1 if a run failed, each with one line;
    130 after Ctrl-C. SIGTERM raises SystemExit(143), and SIGHUP SystemExit(129), after
    a line, too.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    open_what_is_closed()
    if isinstance(sys.stdout, TextIOWrapper):
        # It may be in a code without a sign that is shown
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with output_in_full():
            if not words or words[0] not in _COMMANDS:
                _explain(words)
            with _orderly_termination():
                return _run(*words)
    except AsyncDropError as error:
        say(str(error))
        return _REFUSED if isinstance(error, _REFUSALS) else _FAILED
    except UnwrittenError as error:
        print_no_more()
        say(str(error))
        return _FAILED
    except OSError as error:
        say(one_line(error))
        return _FAILED
    except (MemoryError, RuntimeError) as error:
        if not (line := shortage(error)):
            raise
        say(line)
        return _FAILED
    except KeyboardInterrupt:
        _say_ended(signal.SIGINT)
        return _INTERRUPTED
    except _TerminatedError as end:
        _say_ended(end.signum)
        raise


def _run(name: str, *words: str) -> int:
    # An algorithm, a data set or a model can lie there.
    if (here := _current_folder()) not in sys.path:
        sys.path.append(here)
    with _ended_at_once():
        command = _command(name)
    parser = Parser(prog=f"asyncdrop {name}", allow_abbrev=False)
    command.add_arguments(parser, words)
    parsed, rest = parser.parse_known_args(words)
    if rest and not getattr(command, "PASSES_ON", False):
        parser.refuse(rest)
    parsed.rest = rest
    # A command that is refused leaves no empty folder.
    with tidied(out) if (out := getattr(parsed, "out", None)) else nullcontext():
        return int(command.run(parsed))


def _current_folder() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise ConfigError(
            "the current folder has been deleted: change to one that is there"
        ) from None


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
    """Print the help and exit, or raise what is wrong."""
    parser = Parser(
        prog="asyncdrop",
        description="Asynchronous federated learning on simulated and real fleets.",
    )
    parser.add_argument("--version", action="version", version=versions())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, text in _COMMANDS.items():
        commands.add_parser(name, help=text)
    parser.parse_args(words)


def versions() -> str:
    """Return the versions of this package, and of what a run depends on, in a line."""
    about = [f"{name} {version_of(name)}" for name in (PACKAGE, "flwr", "torch")]
    return ", ".join([*about, f"Python {platform.python_version()}"])


@contextmanager
def _orderly_termination() -> Iterator[None]:
    """Let signals unwind the stack, so that processes and the terminal are tidied.

    SIGHUP that is ignored, as under ``nohup``, stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, _terminate)
        for number in ENDINGS
        if number != signal.SIGINT and signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _ended_at_once() -> Iterator[None]:
    """Let a signal end the process with its line and status, when nothing is begun.

    What a handler raises while packages are imported becomes an ImportError in some.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in ENDINGS:
            if signal.getsignal(number) in (_terminate, signal.default_int_handler):
                before[number] = signal.signal(number, _exit)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit(signum: int, _: FrameType | None) -> None:
    _say_ended(signum)
    os._exit(128 + signum)


def _say_ended(signum: int) -> None:
    text = "interrupted"
    if signum != signal.SIGINT:
        text = f"ended by {signal.Signals(signum).name}"
    with suppress(OSError):  # the terminal may be gone
        say(text)
        sys.stderr.flush()


def _terminate(signum: int, _: FrameType | None) -> None:
    raise _TerminatedError(signum)


class _TerminatedError(SystemExit):
    """A signal asked this process to end."""

    def __init__(self, signum: int) -> None:
        super().__init__(128 + signum)
        self.signum = signum
