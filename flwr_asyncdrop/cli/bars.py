"""How far the runs are, as bars on a terminal."""

from collections.abc import Iterator
from copy import copy
from typing import Self

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

from flwr_asyncdrop.cli.events import RunProgress
from flwr_asyncdrop.cli.lines import LineDisplay, Shown, length_of
from flwr_asyncdrop.readable import (
    counted,
    metric_text,
    readable_bytes,
    sparkline,
    with_decimals,
)


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
        done, total = length_of(run, progress)
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


def _details(run: Shown, progress: RunProgress) -> str:
    parts = [f"t {with_decimals(progress.time, 0)} s"]
    if run.max_seconds:
        parts.append(counted(progress.updates, "update"))
    if progress.in_flight:
        groups = " ".join(map(str, progress.in_flight))
        order = ", fastest first" if len(progress.in_flight) > 1 else ""
        parts.append(f"in flight {groups}{order}")
    parts.append(f"{readable_bytes(progress.num_bytes)} both ways")
    if progress.lost:
        parts.append(f"{progress.lost:,} lost")
    return "  " + " | ".join(parts)
