"""The persistent worker processes of the local grid."""

import atexit
import logging
import multiprocessing
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from types import ModuleType

from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.simulation.client_app import ClientAppSource, pickled
from flwr_asyncdrop.simulation.fork_server import (
    LAST_PRELOADED,
    end_process,
    no_start,
    start_process,
)
from flwr_asyncdrop.simulation.held_signals import held_signals
from flwr_asyncdrop.simulation.liveness import LivenessLimits, Watch, look
from flwr_asyncdrop.simulation.pool_worker import PoolWorker
from flwr_asyncdrop.simulation.runner import Answer, ClientCall, Runner
from flwr_asyncdrop.simulation.startable import MAIN, check_startable, module_of
from flwr_asyncdrop.simulation.transport import READY, Notice, Slot, read_failure
from flwr_asyncdrop.simulation.worker import serve

# One that runs and one that waits, so that a worker has something to do while the
# caller is busy (merging, evaluating) and does not call in.
_CALLS_PER_WORKER = 2
# A machine that is short of memory may kill a worker before it is ready.
_MOST_FAILED_STARTS = 3
# The first optimiser of a process imports it, which takes a second.
_IMPORTED_LATE = ("torch._dynamo",)
_NO_FORK_SERVER = "has lost its fork server"
# The main module is one for all threads, and hidden while a worker starts.
_main_module = threading.Lock()

_log = logging.getLogger(__name__)


class WorkerPool(Runner):
    """Runs calls in worker processes, which it starts, replaces and ends.

    A call goes to the worker that has the fewest, at most two; one that waits behind
    a long one moves to a worker without work. Memory: two slots a worker, each as
    large as the largest message it has held.

    A worker that is stopped, or computes nothing though it has a call, is replaced as
    well, and what it had is run again, once: the answer is the same. `limits` says
    when. Of `gpus`, which are names in CUDA_VISIBLE_DEVICES, each worker sees one, in
    turn; its successor sees the same.
    """

    def __init__(
        self,
        client_app: ClientAppSource,
        size: int,
        threads: int,
        limits: LivenessLimits = LivenessLimits(),  # noqa: B008  # it is immutable
        gpus: Sequence[str] = (),
    ) -> None:
        with _main_module:
            check_startable(client_app)
            self._client_app = pickled(client_app)
        # A factory's module may be the script itself.
        self._needs_main = (
            not isinstance(client_app, str) or module_of(client_app) == MAIN
        )
        self._threads = threads
        self._limits = limits
        self._next_look = 0.0
        self._again: set[str] = set()
        self._owner = os.getpid()
        self._context = multiprocessing.get_context("forkserver")
        # What every worker imports is imported once, where no thread has run yet.
        self._context.set_forkserver_preload(
            [serve.__module__, *_IMPORTED_LATE, LAST_PRELOADED]
        )
        self._selector = selectors.DefaultSelector()
        self._slots: list[Slot] = []
        self._workers: list[PoolWorker] = []
        self._failed_starts = 0
        self._failure: Exception | None = None
        self._answers: list[Answer] = []
        self._lock = threading.RLock()
        self._is_complete = False
        self._is_closed = False
        # Registered after multiprocessing's own, so run before it: it waits for
        # processes that only `close` ends.
        atexit.register(self.close)
        try:
            self._slots += (Slot.make() for _ in range(size * _CALLS_PER_WORKER))
            self._free = list(range(len(self._slots)))
            for number in range(size):
                self._start(gpus[number % len(gpus)] if gpus else "")
            while not all(worker.is_ready for worker in self._workers):
                self.collect(None)
        except BaseException as error:
            self.close()
            if isinstance(error, OSError):
                raise no_start(error) from error
            raise
        self._is_complete = True

    @property
    def has_room(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def submit(self, call: ClientCall) -> None:
        """Hand the call to the worker that has the fewest."""
        with self._lock:
            self._check()
            slot = self._free[-1]
            notice = Notice(slot, self._slots[slot].write(call))
            self._free.pop()
            min(self._workers, key=lambda worker: len(worker.held)).give(notice, call)

    def collect(self, timeout: float | None) -> list[Answer]:
        """Wait for news of any worker, and return the answers among it."""
        with self._lock:
            self._check()
            interval = self._limits.interval
            bound = interval if timeout is None else min(timeout, interval)
            events = self._selector.select(0.0 if self._answers else bound)
            if self._is_closed:  # meanwhile, by another thread, which waits for this
                return []
            if events or time.monotonic() >= self._next_look:
                with self._final_failures():
                    self._take(events)
            answers, self._answers = self._answers, []
            return answers

    def _take(self, events: Iterable[tuple[selectors.SelectorKey, int]]) -> None:
        dead: list[PoolWorker] = []
        for key, _ in events:
            worker: PoolWorker = key.data
            if key.fileobj is worker.channel:
                self._receive(worker)
            else:
                dead.append(worker)
        for worker in dead:
            self._receive(worker)
            # If only the fork server has died, the worker is in the middle of a call.
            self._replace(worker, _NO_FORK_SERVER if worker.is_there else "")
        self._look_after()
        self._share_out()

    @contextmanager
    def _final_failures(self) -> Iterator[None]:
        """Let a failure be the last: calls were lost with it."""
        with held_signals():
            try:
                yield
            except OSError as error:
                self._failure = no_start(error)
                raise self._failure from error
            except Exception as error:
                self._failure = error
                raise

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closed:
            raise RunError("The LocalGrid is closed; make a new one.")
        if os.getpid() != self._owner:
            raise RunError(
                "this process was forked from the one that has the workers of the "
                "LocalGrid: use the grid there, or make another one here"
            )

    def _look_after(self) -> None:
        """Replace the workers that do not go on, every `interval`."""
        if time.monotonic() < self._next_look:
            return
        for worker in list(self._workers):
            has_work = bool(worker.held) or not worker.is_ready
            if trouble := worker.watch.verdict(worker.pid, has_work=has_work):
                self._receive(worker)
                self._replace(worker, trouble)
        self._next_look = time.monotonic() + self._limits.interval

    def close(self) -> None:
        """End the workers: at once where a call runs, else as they finish."""
        # A process forked from this one has the pool's memory, but not its workers.
        if self._is_closed or os.getpid() != self._owner:
            return
        with held_signals():
            self._is_closed = True
            for worker in tuple(self._workers):
                with suppress(OSError):  # another thread has just replaced it
                    worker.channel.shutdown(socket.SHUT_RDWR)  # ends a wait, too
            with self._lock:
                self._end()

    def _end(self) -> None:
        atexit.unregister(self.close)
        for worker in self._workers:
            if worker.held or not worker.is_ready:
                worker.process.terminate()
            with suppress(OSError):  # shut down before
                worker.channel.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + self._limits.exit
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
        for worker in self._workers:
            worker.close(self._limits)
        for slot in self._slots:
            slot.close()
        self._selector.close()

    def _start(self, gpu: str) -> PoolWorker:
        channel, far_end = socket.socketpair()
        process = self._context.Process(
            target=serve,
            args=(far_end, self._slots, self._client_app, self._threads, gpu),
            name="LocalGrid worker",
        )
        hidden = nullcontext() if self._needs_main else no_main_module()
        with _main_module, hidden:
            start_process(process, self._limits)
        worker = PoolWorker(process, channel, far_end, Watch(self._limits), gpu)
        sight = look(worker.pid)
        worker.started = None if sight is None else sight.started
        self._workers.append(worker)
        self._selector.register(channel, selectors.EVENT_READ, worker)
        self._selector.register(process.sentinel, selectors.EVENT_READ, worker)
        return worker

    def _receive(self, worker: PoolWorker) -> None:
        while notice := Notice.receive(worker.channel, wait=False):
            if notice == READY:
                worker.is_ready = True
                self._failed_starts = 0
            elif (text := read_failure(worker.channel, notice)) is not None:
                raise ConfigError(text)
            else:
                call = worker.held.pop(notice.slot)
                worker.watch = Watch(self._limits)  # idle is who answers nothing
                self._again.discard(call.message.metadata.message_id)
                self._free.append(notice.slot)
                slot = self._slots[notice.slot]
                self._answers.append(call.read(partial(slot.read, notice.size)))

    def _replace(self, worker: PoolWorker, trouble: str = "") -> None:
        """Start another worker for one that is dead or in trouble.

        The call that it had begun is run again if it was in trouble, and answered for
        if it died.
        """
        self._workers.remove(worker)
        self._selector.unregister(worker.channel)
        self._selector.unregister(worker.process.sentinel)
        if trouble:
            _log.warning(
                "A worker of the local grid (process %d) %s: it is replaced, and its "
                "task is run again once.",
                worker.pid,
                trouble,
            )
            end_process(worker.process, worker.started, self._limits)
        cause = trouble or _cause_of_death(worker.process)
        waiting = []
        while entry := worker.take_back():
            waiting.append(entry)
        worker.close(self._limits)
        if not worker.is_ready:
            self._failed_starts += 1
            bears_more = self._is_complete or trouble
            if self._failed_starts > (_MOST_FAILED_STARTS if bears_more else 0):
                raise RunError(
                    f"A worker of the local grid {cause} while it loaded the "
                    "ClientApp; a script that uses LocalGrid needs "
                    '`if __name__ == "__main__":` around its code.'
                )
        successor = self._start(worker.gpu)
        for slot, call in worker.held.items():
            message_id = call.message.metadata.message_id
            if trouble and message_id not in self._again:
                self._again.add(message_id)
                # The worker may have written half an answer over it.
                successor.give(Notice(slot, self._slots[slot].write(call)), call)
        for entry in waiting:
            successor.give(*entry)
        for slot, call in worker.held.items():
            if slot in successor.held:
                continue
            self._again.discard(call.message.metadata.message_id)
            self._free.append(slot)
            reason = f"The worker process {cause} while it ran the ClientApp."
            self._answers.append(call.fail(reason, crashed=True))

    def _share_out(self) -> None:
        """Move calls that wait behind another to workers that have none."""
        for idle in self._workers:
            if idle.held:
                continue
            busiest = max(self._workers, key=lambda worker: len(worker.held))
            if len(busiest.held) < _CALLS_PER_WORKER:
                return
            if entry := busiest.take_back():
                idle.give(*entry)


@contextmanager
def no_main_module() -> Iterator[None]:
    """Hide the main module from ``multiprocessing`` while it starts a process.

    Else the process imports it first, which can take longer than its work.
    """
    main = sys.modules[MAIN]
    sys.modules[MAIN] = ModuleType(MAIN)
    try:
        yield
    finally:
        sys.modules[MAIN] = main


def _cause_of_death(process: BaseProcess) -> str:
    process.join()
    code = process.exitcode or 0
    if code < 0:
        known = {int(number): number.name for number in signal.Signals}
        name = known.get(-code, f"signal {-code}")  # real-time ones have no names
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"was ended by {name}{hint}"
    return f"ended with exit code {code}"
