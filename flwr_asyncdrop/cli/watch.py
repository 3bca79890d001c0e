"""``asyncdrop watch``: how far a run is that goes on somewhere else."""

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr_asyncdrop.cli.console import make_console, print_line
from flwr_asyncdrop.cli.display import make_display
from flwr_asyncdrop.cli.events import Ended, Failed, Started, Waiting
from flwr_asyncdrop.cli.flags import folder
from flwr_asyncdrop.cli.follow import Followed, WatchedRun
from flwr_asyncdrop.cli.lines import LineDisplay
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.observers.history_file import lock_of
from flwr_asyncdrop.readable import readable_seconds
from flwr_asyncdrop.report import Summary
from flwr_asyncdrop.report.files import HISTORY, histories
from flwr_asyncdrop.report.reading import read_log
from flwr_asyncdrop.storage.lock import is_free, was_killed

_FAILED = 1
_POLL_SECONDS = 0.5
_SILENCE = 60.0


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = "%(prog)s DIR"
    parser.description = (
        "Show how far a run is that another process does, e.g. `flwr run`. It reads "
        "the run's history as it is written, until the run has ended. Ctrl-C ends the "
        "watching, and not the run. The exit status is 1 if the run was interrupted, "
        "killed, or ended before its last round."
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
        is_whole = watch(Followed(found), display)
        for line in Summary(read_log(found / HISTORY)).text().splitlines():
            print_line(line, display.console)
    return 0 if is_whole else _FAILED


def newest(path: Path) -> Path:
    """Return the folder of the history at a path or below that was written last.

    DataError if there is none.
    """
    if (path / HISTORY).exists():
        return path
    own = histories(path, of_others=True) or histories(path)
    found = [(each.stat().st_mtime, each) for each in own]
    if not found:
        raise DataError(
            f"there is no {HISTORY} in {path} or below: name the out-dir of a run that "
            "has begun"
        )
    return max(found)[1].parent


def watch(
    followed: Followed,
    display: LineDisplay,
    *,
    seconds: float = _POLL_SECONDS,
    timer: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Show a run until it has ended; look for news every so many `seconds`.

    Return whether it did all its rounds: it may have ended early, and one that writes
    nothing may have been interrupted or killed.
    """
    heard, waits = timer(), False
    started: WatchedRun | None = None
    while True:
        if is_news := followed.look():
            heard, waits = timer(), False
        run = followed.run
        if run is None:
            if not waits:
                display.say(f"waiting for the first line in {followed.folder}")
            waits = True
        else:
            if started is None or started.name != run.name:
                if started is not None:  # another run replaces it
                    display.on_end(started)
                display.show(run, Started())
            started = run
            if is_news:
                display.show(run, followed.progress)
            if followed.cut_off:
                display.show(run, Failed(followed.cut_off))
                return False
            if followed.has_ended:
                display.show(run, Ended(followed.progress))
                return True
            if timer() - heard > _SILENCE:
                if reason := _why_nobody_writes(followed.folder):
                    display.show(run, Failed(reason))
                    return False
                if not waits:
                    reason = f"it has written nothing for {readable_seconds(_SILENCE)}"
                    display.show(run, Waiting(reason))
                waits = True
        sleep(seconds)


def _why_nobody_writes(folder: Path) -> str:
    """Return why no process of this machine continues a run; "" if one may."""
    history = lock_of(Path(HISTORY))
    if not is_free(folder) or not is_free(folder, history):
        return ""
    if was_killed(folder, history):
        return "its process was killed"
    return "it was interrupted, and no process goes on with it"
