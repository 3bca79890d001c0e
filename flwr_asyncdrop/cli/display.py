"""How far the runs are: bars on a terminal, a line now and then elsewhere."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from flwr_asyncdrop.cli.events import (
    Ended,
    Event,
    Failed,
    RunProgress,
    Skipped,
    Started,
    Waiting,
)
from flwr_asyncdrop.cli.runs import LOG, RunSpec

_WIDTH_OF_FILES = 120


class LineDisplay:
    """Prints a line when a run starts and ends, and every `seconds` in between."""

    def __init__(
        self,
        console: Console,
        num_runs: int = 1,
        num_complete: int = 0,
        *,
        seconds: float = 30.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console
        self._num_runs = num_runs
        self._num_ended = num_complete
        self._seconds = seconds
        self._timer = timer
        self._started: dict[str, float] = {}
        self._last: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, run: RunSpec, event: Event) -> None:
        """Show what has happened to a run."""
        match event:
            case Started():
                self._started[run.name] = self._last[run.name] = self._timer()
                self.on_start(run)
            case RunProgress():
                self.on_progress(run, event)
            case Waiting():
                self.say(f"waiting  {run.name}: {event.reason}")
            case Ended() | Failed() | Skipped():
                self._num_ended += 1
                self.on_end(run)
                self._say_end(run, event)

    def on_start(self, run: RunSpec) -> None:
        """Show that a run has begun."""
        self.say(f"started  {run.name}")

    def on_progress(self, run: RunSpec, progress: RunProgress) -> None:
        """Show how far a run is, if it is time."""
        now = self._timer()
        if now - self._last[run.name] >= self._seconds:
            self._last[run.name] = now
            self.say(f"running  {run.name}: {_so_far(run, progress)}")

    def on_end(self, run: RunSpec) -> None:
        """Tidy up before the line that says how a run has ended."""

    def _say_end(self, run: RunSpec, how: Ended | Failed | Skipped) -> None:
        count = f"[{self._num_ended}/{self._num_runs}]"
        if isinstance(how, Ended):
            seconds = self._timer() - self._started[run.name]
            so_far = _so_far(run, how.progress)
            self.say(f"complete {run.name} {count}: {so_far} in {seconds:,.0f} s")
            return
        if isinstance(how, Skipped):
            self.say(f"skipped  {run.name} {count}: in use by {how.holder}")
            return
        self.say(f"FAILED   {run.name} {count}: {how.reason}")
        if (log := run.folder / LOG).exists():
            self.say(f"         its log: {log}")

    def say(self, line: str) -> None:
        """Print a line as it is, if the disk or pipe that it goes to takes it."""
        with suppress(OSError):
            print_line(line, self.console)


class BarDisplay(LineDisplay):
    """Shows a bar for every run under way, and one for all."""

    def __init__(
        self, console: Console, num_runs: int = 1, num_complete: int = 0
    ) -> None:
        super().__init__(console, num_runs, num_complete)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[progress]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._bar_of: dict[str, TaskID] = {}
        self._all = self._bars.add_task(
            "all runs",
            total=num_runs,
            completed=num_complete,
            progress="",
            visible=num_runs > 1,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def on_start(self, run: RunSpec) -> None:
        """Give a run its bar."""
        self._bar_of[run.name] = self._bars.add_task(
            escape(run.name), total=_length(run, RunProgress())[1], progress=""
        )

    def on_progress(self, run: RunSpec, progress: RunProgress) -> None:
        """Move the run's bar."""
        done, _ = _length(run, progress)
        self._bars.update(
            self._bar_of[run.name], completed=done, progress=str(progress)
        )

    def on_end(self, run: RunSpec) -> None:
        """Take the run's bar away."""
        self._bars.remove_task(self._bar_of.pop(run.name))
        self._bars.advance(self._all)


def make_console() -> Console:
    """Return the console of this process; a file has more width than rich assumes."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_FILES)


def make_display(
    console: Console, num_runs: int = 1, num_complete: int = 0
) -> LineDisplay:
    """Return the display that suits the console."""
    kind = BarDisplay if console.is_terminal else LineDisplay
    return kind(console, num_runs, num_complete)


def print_line(line: str, console: Console) -> None:
    """Print a line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _so_far(run: RunSpec, progress: RunProgress) -> str:
    if run.config.max_seconds:
        return f"{progress.updates} updates, {progress}"
    return f"{progress.updates}/{run.num_updates} updates, {progress}"


def _length(run: RunSpec, progress: RunProgress) -> tuple[int, int]:
    """Return how far a run is and where it ends: in updates, or in its seconds."""
    if seconds := run.config.max_seconds:
        return round(min(progress.time, seconds)), math.ceil(seconds)
    return progress.updates, run.num_updates


@contextmanager
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Let Flower's logger say its warnings here, and nothing else anywhere.

    Its own handler writes to the terminal, between the lines of a display.
    """
    logger = logging.getLogger("flwr")
    handlers = logger.handlers[:]
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: say(  # type: ignore[method-assign]
        f"{record.levelname.lower()}: {record.getMessage()}"
    )
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = handlers
