"""How far the runs are: bars on a terminal, a line now and then elsewhere."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Protocol, Self

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column
from rich.text import Text

from flwr_asyncdrop.cli.console import print_if_possible
from flwr_asyncdrop.cli.events import (
    Ended,
    Event,
    Failed,
    Preparing,
    RunProgress,
    Skipped,
    Started,
    Waiting,
    Warned,
)
from flwr_asyncdrop.cli.message import WarningHandler
from flwr_asyncdrop.cli.runs import LOG
from flwr_asyncdrop.readable import (
    metric_text,
    readable_bytes,
    readable_seconds,
    sparkline,
)


class Shown(Protocol):
    """A run that is shown."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def folder(self) -> Path:
        """Where its files are."""

    @property
    def num_updates(self) -> int:
        """After how many updates it ends; 0 if that is not known."""

    @property
    def max_seconds(self) -> float:
        """After how many seconds on its clock, if that is sooner; 0 for no limit."""


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
        self._began: dict[str, tuple[float, int]] = {}
        self._warned: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def show(self, run: Shown, event: Event) -> None:
        """Show what has happened to a run."""
        match event:
            case Started():
                self._started[run.name] = self._last[run.name] = self._timer()
                self.on_start(run)
            case Preparing():
                self.on_stage(run, event.stage)
            case RunProgress():
                now = self._timer()
                self._began.setdefault(run.name, (now, _length(run, event)[0]))
                self.on_progress(run, event)
            case Waiting():
                self.say(f"waiting  {run.name}: {event.reason}")
            case Warned():
                if event.kind not in self._warned:
                    self._warned.add(event.kind)
                    self.say(f"warning  {run.name}: {event.text}")
            case Ended() | Failed() | Skipped():
                self._num_ended += 1
                self.on_end(run)
                self._say_end(run, event)

    def on_start(self, run: Shown) -> None:
        """Show that a run has begun."""
        self.say(f"started  {run.name}")

    def on_stage(self, run: Shown, stage: str) -> None:
        """Show what a run does before its first task; a line does not."""

    def on_progress(self, run: Shown, progress: RunProgress) -> None:
        """Show how far a run is, if it is time."""
        now = self._timer()
        if now - self._last[run.name] >= self._seconds:
            self._last[run.name] = now
            so_far = _so_far(run, progress)
            self.say(f"running  {run.name}: {so_far}{self._left(run, progress)}")

    def _left(self, run: Shown, progress: RunProgress) -> str:
        """Say how long a run goes on at the speed that it had in this process."""
        began, before = self._began[run.name]
        done, total = _length(run, progress)
        if done <= before or not total:
            return ""
        seconds = (self._timer() - began) * (total - done) / (done - before)
        return f", {readable_seconds(seconds)} left"

    def on_end(self, run: Shown) -> None:
        """Tidy up before the line that says how a run has ended."""

    def _say_end(self, run: Shown, how: Ended | Failed | Skipped) -> None:
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

    def note(self, line: str) -> None:
        """Print a line that is of no importance."""
        self.say(line)

    def say(self, line: str) -> None:
        """Print a line as it is, if the disk or pipe that it goes to takes it."""
        print_if_possible(line, self.console)


class QuietDisplay(LineDisplay):
    """Prints what went wrong, and nothing else."""

    def on_start(self, run: Shown) -> None:
        """Say nothing."""

    def on_progress(self, run: Shown, progress: RunProgress) -> None:
        """Say nothing."""

    def note(self, line: str) -> None:
        """Say nothing."""

    def _say_end(self, run: Shown, how: Ended | Failed | Skipped) -> None:
        if not isinstance(how, Ended):
            super()._say_end(run, how)


class _Bars(Progress):
    """The bars, and below that of a single run what its devices do."""

    details = ""

    def get_renderables(self) -> Iterator[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.details:
            yield Text(self.details, no_wrap=True, overflow="ellipsis")


class BarDisplay(LineDisplay):
    """Shows a bar for every run under way, and one for all."""

    def __init__(
        self, console: Console, num_runs: int = 1, num_complete: int = 0
    ) -> None:
        super().__init__(console, num_runs, num_complete)
        whole = Column(no_wrap=True, overflow="ellipsis")
        self._bars = _Bars(
            TextColumn("{task.description}", table_column=whole),
            BarColumn(bar_width=None, table_column=Column(ratio=1, min_width=8)),
            TextColumn("{task.fields[count]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[text]}", table_column=copy(whole)),
            console=console,
            transient=True,
            expand=True,
        )
        self._bar_of: dict[str, TaskID] = {}
        self._all = self._bars.add_task(
            "all runs",
            total=num_runs,
            completed=num_complete,
            count=f"{num_complete}/{num_runs}",
            text="",
            visible=num_runs > 1,
        )

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def on_start(self, run: Shown) -> None:
        """Give a run its bar."""
        self._bar_of[run.name] = self._bars.add_task(
            escape(run.name), total=None, count="", text=""
        )

    def on_stage(self, run: Shown, stage: str) -> None:
        """Say it beside the run's bar, which only moves to and fro."""
        self._bars.update(self._bar_of[run.name], text=escape(stage))

    def on_progress(self, run: Shown, progress: RunProgress) -> None:
        """Move the run's bar."""
        done, total = _length(run, progress)
        bar = self._bar_of[run.name]
        if done == self._began[run.name][1]:
            # What an earlier process did says nothing about the time that is left.
            self._bars.reset(bar, total=total or None, completed=done)
        unit = " s" if run.max_seconds else ""
        of_all = f"/{total:,}" if total else ""
        self._bars.update(
            bar,
            total=total or None,
            completed=done,
            count=f"{done:,}{of_all}{unit}",
            text=self._standing(progress),
        )
        if self._num_runs == 1:
            self._bars.details = _details(run, progress)

    def _standing(self, progress: RunProgress) -> str:
        """Return the metric with its curve, and what was lost."""
        parts = []
        if progress.metric is not None:
            ascii_only = self.console.options.ascii_only
            curve = "" if ascii_only else f"{sparkline(progress.curve)} "
            name, value = progress.metric
            parts.append(f"{curve}{escape(name)} {metric_text(name, value)}")
        if progress.lost and self._num_runs > 1:
            parts.append(f"{progress.lost:,} lost")
        return ", ".join(parts)

    def on_end(self, run: Shown) -> None:
        """Take the run's bar away."""
        self._bars.details = ""
        self._bars.remove_task(self._bar_of.pop(run.name))
        self._bars.update(
            self._all, advance=1, count=f"{self._num_ended}/{self._num_runs}"
        )


def make_display(
    console: Console, num_runs: int = 1, num_complete: int = 0, *, quiet: bool = False
) -> LineDisplay:
    """Return the display that suits the console, or shows only what went wrong.

    A terminal that cannot move its cursor, as ``TERM=dumb`` says, gets lines.
    """
    if quiet:
        return QuietDisplay(console, num_runs, num_complete)
    has_bars = console.is_terminal and not console.is_dumb_terminal
    kind = BarDisplay if has_bars else LineDisplay
    return kind(console, num_runs, num_complete)


def _so_far(run: Shown, progress: RunProgress) -> str:
    if run.max_seconds or not run.num_updates:
        return f"{progress.updates} updates, {progress}"
    return f"{progress.updates}/{run.num_updates} updates, {progress}"


def _details(run: Shown, progress: RunProgress) -> str:
    parts = [f"t {progress.time:,.0f} s"]
    if run.max_seconds:
        parts.append(f"{progress.updates:,} updates")
    if progress.in_flight:
        groups = " ".join(map(str, progress.in_flight))
        order = ", fastest first" if len(progress.in_flight) > 1 else ""
        parts.append(f"in flight {groups}{order}")
    parts.append(f"{readable_bytes(progress.num_bytes)} both ways")
    if progress.lost:
        parts.append(f"{progress.lost:,} lost")
    return "  " + " | ".join(parts)


def _length(run: Shown, progress: RunProgress) -> tuple[int, int]:
    """Return how far a run is and where it ends: in updates, or in its seconds.

    The end is 0 if it is not known.
    """
    if seconds := run.max_seconds:
        return round(min(progress.time, seconds)), math.ceil(seconds)
    return progress.updates, run.num_updates


@contextmanager
def warnings_to(say: Callable[[str], None]) -> Iterator[None]:
    """Let Flower's logger say its warnings here, and nothing else anywhere.

    Its own handler writes to the terminal, between the lines of a display.
    """
    logger = logging.getLogger("flwr")
    handlers = logger.handlers[:]
    handler = WarningHandler(
        lambda record: say(f"{record.levelname.lower()}: {record.getMessage()}")
    )
    logger.handlers[:] = [handler]
    try:
        yield
    finally:
        logger.handlers[:] = handlers
