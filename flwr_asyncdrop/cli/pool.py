"""Runs side by side, each in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import IO, Self

from flwr_asyncdrop.cli.events import (
    Ended,
    Event,
    Failed,
    RunProgress,
    Started,
    from_line,
)
from flwr_asyncdrop.cli.runs import LOG, RunSpec

_COMMAND = (sys.executable, "-m", "flwr_asyncdrop", "worker")
_KILLED = -9


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def share_out(jobs: int, num_runs: int) -> tuple[int, int]:
    """Return how many runs are side by side, and the worker processes of each.

    Runs train in their own process, which costs least, unless there are two cores and
    more for each.
    """
    if num_runs == 0:
        return 0, 0
    side_by_side = min(jobs, num_runs)
    each = jobs // side_by_side
    return side_by_side, each if each > 1 else 0


class RunPool:
    """A process for each run, `size` of them side by side; a context manager.

    A process that dies costs its run. `command` does a run: it gets the run as JSON,
    how many worker processes to use, and the descriptor to which it writes its events
    as lines of JSON.
    """

    def __init__(
        self, size: int, workers: int, command: Sequence[str] = _COMMAND
    ) -> None:
        self._workers = workers
        self._command = command
        self._threads = ThreadPoolExecutor(max(size, 1))
        self._events: SimpleQueue[tuple[RunSpec, Event]] = SimpleQueue()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, also those that have a run, and wait for them."""
        with self._lock:
            self._closed = True
            for process in self._processes:
                process.terminate()
        self._threads.shutdown(cancel_futures=True)

    def do(self, runs: Sequence[RunSpec]) -> Iterator[tuple[RunSpec, Event]]:
        """Do all runs; yield what happens to which as it happens.

        The last event of a run is `Ended` or `Failed`.
        """
        for run in runs:
            self._threads.submit(self._do, run)
        remaining = len(runs)
        while remaining:
            run, event = self._events.get()
            yield run, event
            remaining -= isinstance(event, Ended | Failed)

    def _do(self, run: RunSpec) -> None:
        try:
            end = self._follow(run)
        except Exception as error:
            end = Failed(f"{type(error).__name__}: {error}")
        self._events.put((run, end))

    def _follow(self, run: RunSpec) -> Ended | Failed:
        """Start the process of a run, pass its progress on, and return its end."""
        run.folder.mkdir(parents=True, exist_ok=True)
        log = run.folder / LOG
        process, channel = self._start(run, log)
        last = RunProgress()
        with channel:
            for line in channel:
                event = from_line(line)
                if isinstance(event, Failed):
                    process.wait()
                    return event
                last = event
                self._events.put((run, event))
        code = process.wait()
        return Ended(last) if code == 0 else Failed(_how_it_died(code, log))

    def _start(
        self, run: RunSpec, log: Path
    ) -> tuple[subprocess.Popen[bytes], IO[str]]:
        """Return the process of a run, and what it says of itself."""
        reading, writing = os.pipe()
        words = run.to_json(), str(self._workers), str(writing)
        with self._lock, log.open("wb") as output:
            if self._closed:
                raise InterruptedError("the comparison was ended")
            process = subprocess.Popen(  # noqa: S603  # our own command
                [*self._command, *words],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[writing],
            )
            self._processes.append(process)
        os.close(writing)  # so that the channel ends with the process
        self._events.put((run, Started()))
        return process, os.fdopen(reading)


def _how_it_died(code: int, log: Path) -> str:
    """Return the exit code of a process, and the last line of its log."""
    hint = " (out of memory?)" if code == _KILLED else ""
    lines = log.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process died with exit code {code}{hint}{last and f': {last}'}"
