"""Runs side by side, each in a process of its own."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Self

from flwr_asyncdrop.cli import worker
from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.events import (
    Done,
    Ended,
    Event,
    Failed,
    RunProgress,
    Said,
    Skipped,
    Started,
)
from flwr_asyncdrop.cli.message import reason_of
from flwr_asyncdrop.cli.runs import LOG, RunSpec
from flwr_asyncdrop.simulation.fork_server import LAST_PRELOADED, start_process
from flwr_asyncdrop.simulation.liveness import LivenessLimits, Watch

Work = Callable[[RunSpec, Backend, "Connection[Said, None]"], None]

_KILLED = -9
_SLICE_SECONDS = 0.5
# A name: this process has no need of what it imports
_PRELOADED = "flwr_asyncdrop.cli.preloaded"


def share_out(jobs: int, num_runs: int) -> tuple[int, int]:
    """Return how many runs are side by side, and the worker processes of each.

    A run with fewer than two cores trains in its own process, which costs least.
    """
    if num_runs == 0:
        return 0, 0
    side_by_side = min(jobs, num_runs)
    each = jobs // side_by_side
    return side_by_side, each if each > 1 else 0


class RunPool:
    """A process for each run; a context manager.

    As many are side by side as there are `backends`, of which each run has one. `work`,
    a function of a module, does a run. If its process dies, or is stopped for longer
    than `limits` says, the run failed.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        work: Work = worker.work,
        limits: LivenessLimits = LivenessLimits(),  # noqa: B008  # frozen
    ) -> None:
        self._idle: SimpleQueue[Backend] = SimpleQueue()
        for backend in backends:
            self._idle.put(backend)
        self._work = work
        self._limits = limits
        # A process is a fork of one that has the imports done, which cost seconds.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([_PRELOADED, LAST_PRELOADED])
        self._threads = ThreadPoolExecutor(max(len(backends), 1))
        self._events: SimpleQueue[tuple[RunSpec, Event]] = SimpleQueue()
        self._processes: list[BaseProcess] = []
        self._lock = Lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all processes, also those that have a run, and wait for them."""
        self._closed = True  # who holds the lock waits for the first process to start
        with self._lock:
            for process in self._processes:
                process.terminate()
        self._threads.shutdown(cancel_futures=True)

    def do(self, runs: Sequence[RunSpec]) -> Iterator[tuple[RunSpec, Event]]:
        """Do all runs; yield what happens to which as it happens.

        The last event of a run is `Ended`, `Failed` or `Skipped`.
        """
        for run in runs:
            self._threads.submit(self._do, run)
        remaining = len(runs)
        while remaining:
            try:
                # Without an end, the wait may not let go for Ctrl-C
                run, event = self._events.get(timeout=_SLICE_SECONDS)
            except Empty:
                continue
            yield run, event
            remaining -= isinstance(event, Ended | Failed | Skipped)

    def _is_wanted(self) -> bool:
        """Return whether to wait until a process has started.

        With one that runs, none takes long.
        """
        return bool(self._processes) or not self._closed

    def _check(self, process: BaseProcess, watch: Watch) -> None:
        """Kill a process that is stopped, which nobody would hear of otherwise."""
        number = process.pid or 0
        if trouble := watch.verdict(number, has_work=False):
            process.kill()
            raise _StuckError(f"its process {number} {trouble}, and was killed")

    def _do(self, run: RunSpec) -> None:
        backend = self._idle.get()
        try:
            end: Event = self._follow(run, backend)
        except Exception as error:
            end = Failed(reason_of(error))
        self._idle.put(backend)
        self._events.put((run, end))

    def _follow(self, run: RunSpec, backend: Backend) -> Ended | Failed | Skipped:
        near, far = self._context.Pipe(duplex=False)
        process = self._context.Process(
            target=self._work, args=(run, backend, far), name="asyncdrop run"
        )
        with self._lock:
            if self._closed:
                return Failed("the comparison was ended")
            start_process(process, self._limits, self._is_wanted)
            self._processes.append(process)
        # The channel ends with the process only if nobody else holds its far end.
        far.close()
        self._events.put((run, Started()))
        last: RunProgress = RunProgress()
        end: Failed | Skipped | Done | None = None
        watch = Watch(self._limits)
        with near:
            try:
                while True:
                    while not near.poll(self._limits.interval):
                        self._check(process, watch)
                    if isinstance(said := near.recv(), Failed | Skipped | Done):
                        break
                    self._events.put((run, said))
                    last = said if isinstance(said, RunProgress) else last
                end = said
            except EOFError:
                pass
            except _StuckError as stuck:
                end = Failed(str(stuck))
        wait([process.sentinel])
        with self._lock:
            # The start of another process looks for its exit code, too: who comes
            # second at the same moment finds none.
            process.join()
        if isinstance(end, Failed | Skipped):
            return end
        code = process.exitcode or 0
        if code or end is None:
            return Failed(_how_it_died(code, run.folder / LOG))
        return Ended(last)


class _StuckError(Exception):
    """The process of a run does not go on."""


def _how_it_died(code: int, log: Path) -> str:
    hint = " (out of memory?)" if code == _KILLED else ""
    lines = log.read_text(errors="replace").split("\n") if log.exists() else []
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f"its process died with exit code {code}{hint}{last and f': {last}'}"
