"""The fork server of ``multiprocessing``: starting processes, though it may be stuck.

It is one for this process and starts all others. ``Process.start`` waits for its answer
for ever, and it alone knows of the end of the processes.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.process import BaseProcess

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.simulation.liveness import LivenessLimits, Watch, look
from flwr_asyncdrop.simulation.safe_path import safe_path

_log = logging.getLogger(__name__)

LAST_PRELOADED = "flwr_asyncdrop.simulation.past_interrupts"
"""What a fork server has to import last, or no process that it starts hears Ctrl-C."""

_MOST_STARTS = 3
_SECONDS_TO_DIE = 5.0


def start_process(
    process: BaseProcess,
    limits: LivenessLimits,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Start a process. A fork server that is stuck is killed, and another one started.

    So is one that still imports, which takes seconds, when the process is not wanted
    any more. With it all its processes lose whom their parent hears of their end from:
    their sentinels end. RunError: three fork servers were stuck, or it is not wanted.
    """
    for _ in range(_MOST_STARTS):
        errors: list[BaseException] = []
        thread = threading.Thread(target=_start, args=(process, errors), daemon=True)
        thread.start()
        watch = Watch(limits)
        while thread.is_alive():
            thread.join(limits.interval)
            server = server_pid()
            if server is None or not thread.is_alive():
                continue
            if not is_wanted():
                kill_process(server)
                continue
            if trouble := watch.verdict(server, has_work=True):
                _log.warning(
                    "The fork server (process %d) %s: it is replaced, and what its "
                    "workers had is run again.",
                    server,
                    trouble,
                )
                kill_process(server)
                watch = Watch(limits)
        if not errors:
            return
        if not isinstance(errors[0], EOFError | OSError):
            raise errors[0]
        if not is_wanted():
            raise RunError("a process is not wanted any more")
    if isinstance(errors[0], OSError) and not isinstance(errors[0], ConnectionError):
        raise no_start(errors[0]) from errors[0]
    raise RunError(
        f"no worker process can be started ({errors[0]!r}): the fork server died or "
        f"was stuck {_MOST_STARTS} times; a LocalGrid with workers=0 has none"
    )


def no_start(error: OSError) -> RunError:
    """Return what says that the system lets no worker process start."""
    return RunError(
        f"no worker process can be started ({error.strerror or error}): start fewer, "
        "and see the limits of this process (`ulimit -a`) and its folder for "
        "temporary files (TMPDIR, at most 70 characters); a LocalGrid with workers=0 "
        "has none"
    )


def _start(process: BaseProcess, errors: list[BaseException]) -> None:
    try:
        with safe_path():
            resource_tracker.ensure_running()  # it unblocks SIGINT
            # Of this thread, and of a fork server that it starts, until it has imported
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            process.start()
    except BaseException as error:
        errors.append(error)


def end_process(
    process: BaseProcess, started: int | None, limits: LivenessLimits
) -> None:
    """Kill a process, and wait until the fork server has said that it has ended.

    One that does not say so is killed as well: nobody may wait for it for ever. The
    process may be alive though it is said to have ended: if the fork server has died.
    """
    if process.pid is not None:
        kill_process(process.pid, started)
    process.join(limits.exit)
    if process.is_alive() and (server := server_pid()) is not None:
        kill_process(server)
        process.join(limits.exit)


def server_pid() -> int | None:
    """Return the number of the fork server of this process, if it has one."""
    server = getattr(forkserver, "_forkserver", None)
    pid = getattr(server, "_forkserver_pid", None)
    return pid if isinstance(pid, int) else None


def kill_process(pid: int, started: int | None = None) -> None:
    """Kill a process, if it is the one that `started` then; wait until it has ended."""
    deadline = time.monotonic() + _SECONDS_TO_DIE
    # One that the system itself holds does nothing more when it is let go.
    while time.monotonic() < deadline:
        sight = look(pid)
        if sight is None or sight.is_gone or started not in (None, sight.started):
            return
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
