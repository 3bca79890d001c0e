"""A process that takes run after run, and so loads each data set once."""

import os
import signal
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from flwr_asyncdrop.cli.events import Progress
from flwr_asyncdrop.cli.execute import execute
from flwr_asyncdrop.cli.runs import LOG, RunSpec
from flwr_asyncdrop.exceptions import AsyncDropError

_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True)
class Ended:
    """The run has ended well.

    Attributes
    ----------
    progress : Progress
        The last there was.
    """

    progress: Progress


@dataclass(frozen=True)
class Failed:
    """The run could not go on.

    Attributes
    ----------
    reason : str
        One line; the whole story is in the run's log.
    """

    reason: str


def work(
    channel: "Connection[Progress | Ended | Failed, RunSpec]", workers: int
) -> None:
    """Answer each run with its progress, and then with how it ended.

    Parameters
    ----------
    channel : Connection
        Where runs come from, and answers go to; the end of the one is that of the
        other.
    workers : int
        Worker processes of each run.
    """
    # Ctrl-C goes to the whole process group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        while True:
            channel.send(_answer(channel, channel.recv(), workers))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _answer(
    channel: "Connection[Progress | Ended | Failed, RunSpec]",
    run: RunSpec,
    workers: int,
) -> Ended | Failed:
    last = Progress()

    def say(progress: Progress) -> None:
        nonlocal last
        last = progress
        channel.send(progress)

    try:
        _write_output_to(run.folder / LOG)
        execute(run, workers, say, "the same asyncdrop compare")
    except (BrokenPipeError, ConnectionResetError):
        raise
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, AsyncDropError)
        return Failed(str(error) if known else f"{type(error).__name__}: {error}")
    return Ended(last)


def _write_output_to(path: Path) -> None:
    """Let all that this process prints, in whatever language, go to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("wb") as log:
        os.dup2(log.fileno(), _STDOUT)
        os.dup2(log.fileno(), _STDERR)
