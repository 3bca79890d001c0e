"""Runs side by side, each in a process of its own."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Self

from flwr_asyncdrop.cli import worker
from flwr_asyncdrop.cli.events import Progress
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.cli.worker import Ended, Failed


@dataclass(frozen=True)
class Started:
    """A process has taken the run."""


Answer = Progress | Ended | Failed
Event = Started | Answer
Work = Callable[["Connection[Answer, RunSpec]", int], None]


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_out(jobs: int, num_runs: int) -> tuple[int, int]:
    """Share cores out between runs.

    Returns
    -------
    tuple of int
        Runs side by side, and worker processes of each. Runs train in their own
        process, which costs least, unless there are two cores and more for each.
    """
    if num_runs == 0:
        return 0, 0
    side_by_side = min(jobs, num_runs)
    each = jobs // side_by_side
    return side_by_side, each if each > 1 else 0


@dataclass(eq=False)
class _Process:
    """A process with a channel to it, and the run that it has."""

    process: BaseProcess
    channel: "Connection[RunSpec, Answer]"
    run: RunSpec | None = None


class RunPool:
    """Processes that take run after run; a context manager.

    A process that dies costs the run that it had, and is replaced.

    Parameters
    ----------
    size : int
        Runs side by side.
    workers : int
        Worker processes of each run; 0 trains in the run's own process.
    work : callable
        What a process does; a function of a module.
    """

    def __init__(self, size: int, workers: int, work: Work = worker.work) -> None:
        self._workers = workers
        self._work = work
        self._context = multiprocessing.get_context("forkserver")
        # Imported once, and not once a process.
        self._context.set_forkserver_preload([worker.__name__])
        self._processes: list[_Process] = []
        try:
            for _ in range(size):
                self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, also those that have a run."""
        for entry in self._processes:
            entry.process.terminate()
        for entry in self._processes:
            entry.process.join()
            entry.channel.close()
        self._processes.clear()

    def do(self, runs: Sequence[RunSpec]) -> Iterator[tuple[RunSpec, Event]]:
        """Do all runs; yield what happens to which as it happens.

        The last event of a run is `Ended` or `Failed`.
        """
        waiting = deque(runs)
        while True:
            for entry in self._processes:
                if entry.run is None and waiting:
                    entry.run = waiting.popleft()
                    # One that died meanwhile says so when it is asked for news.
                    with suppress(BrokenPipeError, ConnectionResetError):
                        entry.channel.send(entry.run)
                    yield entry.run, Started()
            busy = [entry for entry in self._processes if entry.run is not None]
            if not busy:
                return
            ready = connection.wait([entry.channel for entry in busy])
            for entry in busy:
                if entry.channel in ready and entry.run is not None:
                    run, event = entry.run, self._next_event(entry)
                    if isinstance(event, Ended | Failed):
                        entry.run = None
                    yield run, event

    def _next_event(self, entry: _Process) -> Answer:
        try:
            return entry.channel.recv()
        except (EOFError, ConnectionResetError):
            entry.process.join()
            code = entry.process.exitcode
            entry.channel.close()
            self._processes.remove(entry)
            self._start()
            return Failed(f"its process died with exit code {code} (out of memory?)")

    def _start(self) -> None:
        near, far = self._context.Pipe()
        process = self._context.Process(
            target=self._work, args=(far, self._workers), name="asyncdrop run"
        )
        process.start()
        # The channel ends with the process only if nobody else holds its far end.
        far.close()
        self._processes.append(_Process(process, near))
