"""``asyncdrop watch``: how far a run is that goes on somewhere else."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr_asyncdrop.cli.display import LineDisplay, make_console, make_display
from flwr_asyncdrop.cli.events import Ended, Started, Waiting
from flwr_asyncdrop.cli.flags import folder
from flwr_asyncdrop.cli.follow import HISTORY, Followed
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history import read_history
from flwr_asyncdrop.readable import readable_seconds
from flwr_asyncdrop.report import summarise

_POLL_SECONDS = 0.5
_SILENCE = 60.0


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = "%(prog)s DIR"
    parser.description = (
        "Show how far a run is that another process does, e.g. `flwr run`. It reads "
        "the run's history as it is written, until the run has ended. Ctrl-C ends the "
        "watching, and not the run."
    )
    parser.add_argument(
        "folder",
        type=folder,
        metavar="DIR",
        help="folder of the run, or one above it: the run that wrote last is shown",
    )


def run(arguments: argparse.Namespace) -> int:
    """Watch the run to its end, and show what it came to."""
    found = newest(arguments.folder)
    display = make_display(make_console())
    with display:
        watch(Followed(found), display)
        for line in summarise(read_history(found / HISTORY)).text().splitlines():
            display.say(line)
    return 0


def newest(path: Path) -> Path:
    """Return the folder of the history at a path or below that was written last.

    DataError if there is none.
    """
    if (path / HISTORY).exists():
        return path
    histories = [(each.stat().st_mtime, each) for each in path.rglob(HISTORY)]
    if not histories:
        raise DataError(
            f"there is no {HISTORY} in {path} or below: name the out-dir of a run that "
            "has begun"
        )
    return max(histories)[1].parent


def watch(
    followed: Followed,
    display: LineDisplay,
    *,
    seconds: float = _POLL_SECONDS,
    timer: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show a run until it has ended; look for news every so many `seconds`."""
    heard, silent = timer(), False
    while True:
        shown = followed.run
        if followed.look():
            heard, silent = timer(), False
            if shown is None and followed.run is not None:
                display.show(followed.run, Started())
            if followed.run is not None:
                display.show(followed.run, followed.progress)
        if followed.run is not None and followed.has_ended:
            display.show(followed.run, Ended(followed.progress))
            return
        if timer() - heard > _SILENCE and followed.run is not None and not silent:
            silent = True
            reason = f"it has written nothing for {readable_seconds(_SILENCE)}"
            display.show(followed.run, Waiting(reason))
        sleep(seconds)
