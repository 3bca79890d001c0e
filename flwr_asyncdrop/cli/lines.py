"""How far the runs are, in a line now and then."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, Self

from rich.console import Console

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
from flwr_asyncdrop.cli.runs import LOG
from flwr_asyncdrop.readable import counted, readable_seconds


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
                self._began.setdefault(run.name, (now, length_of(run, event)[0]))
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
        done, total = length_of(run, progress)
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


def _so_far(run: Shown, progress: RunProgress) -> str:
    if run.max_seconds or not run.num_updates:
        return f"{counted(progress.updates, 'update')}, {progress}"
    return f"{progress.updates}/{run.num_updates} updates, {progress}"


def length_of(run: Shown, progress: RunProgress) -> tuple[int, int]:
    """Return how far a run is and where it ends: in updates, or in its seconds.

    The end is 0 if it is not known.
    """
    if seconds := run.max_seconds:
        return round(min(progress.time, seconds)), math.ceil(seconds)
    return progress.updates, run.num_updates
