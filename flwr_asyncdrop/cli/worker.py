"""One run on a LocalGrid: in this process, or in one of a comparison's."""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from flwr_asyncdrop.app.end import FilesAtTheEnd
from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.events import (
    Done,
    Failed,
    Preparing,
    Reporter,
    RunProgress,
    Said,
    Skipped,
    Waiting,
    Warned,
)
from flwr_asyncdrop.cli.message import WarningHandler, plain_line, reason_of
from flwr_asyncdrop.cli.runs import (
    LOG,
    RunSpec,
    is_complete,
    is_trained,
    progress_of,
    resumed,
)
from flwr_asyncdrop.cli.streams import print_no_more
from flwr_asyncdrop.exceptions import FolderInUseError, RunError
from flwr_asyncdrop.observers.history_reading import read_history
from flwr_asyncdrop.report import Summary, summarise
from flwr_asyncdrop.simulation.gpus import see_only
from flwr_asyncdrop.simulation.safe_path import forget
from flwr_asyncdrop.simulation.terminal import leave_to_the_parent
from flwr_asyncdrop.storage.lock import FolderLock
from flwr_asyncdrop.storage.whole import changing

_STDOUT, _STDERR = 1, 2
_FAILED = 1
_COMMAND = "the same command"  # compare, tune or advise
# What processes of a comparison that was killed may need to end.
_PATIENCE = 10.0


def execute(
    run: RunSpec,
    backend: Backend,
    say: Callable[[Preparing | RunProgress | Waiting], None],
    resume_command: str,
) -> None:
    """Do a run to its end, and write its files."""
    say(Preparing(backend.opening))
    with backend.open(run) as grid:
        say(Preparing("reading the data and building the model"))
        reporter = Reporter(say)
        run_experiment(
            grid,
            run.config,
            [reporter],
            resume_command,
            lambda reason: say(Waiting(reason)),
        )


def summary_of(folder: Path) -> Summary:
    """Return what the run in a folder came to."""
    return summarise(read_history(RunFolder(folder).history))


def work(run: RunSpec, backend: Backend, channel: "Connection[Said, None]") -> None:
    """Do a run in a process of its own, which exits with 0 if all is well."""
    lock = threading.Lock()

    def say(said: Said) -> None:
        with lock:  # any thread may warn
            channel.send(said)

    forget()
    see_only(backend.gpus[0] if backend.gpus else "")
    leave_to_the_parent()
    try:
        _end_with_the_comparison()
        with FolderLock(run.folder, patience=_PATIENCE):
            _write_output_to(run.folder / LOG)
            _say_warnings(say)
            try:
                _do(run, backend, say)
                say(Done())
            except Exception:
                traceback.print_exc()
                raise
    except BrokenPipeError:
        sys.exit(_FAILED)  # the comparison is gone
    except FolderInUseError as busy:
        say(Skipped(busy.holder))
        sys.exit(_FAILED)
    except Exception as error:
        say(Failed(reason_of(error)))
        sys.exit(_FAILED)
    finally:
        _let_go_of_the_log()


def _do(
    run: RunSpec,
    backend: Backend,
    say: Callable[[Preparing | RunProgress | Waiting], None],
) -> None:
    """Do of a run what is missing, as it is now that nobody else can change it."""
    if not is_complete(run) and not is_trained(run):
        execute(resumed(run), backend, say, _COMMAND)
        if reason := summary_of(run.folder).cut_off:
            raise RunError(reason)
        return
    with FilesAtTheEnd(
        run.folder, lambda reason: say(Waiting(reason)), lambda: _COMMAND
    ) as files:
        files.finish(over=True)
    say(progress_of(run))


def _say_warnings(say: Callable[[Warned], None]) -> None:
    """Say the first warning of each kind."""
    kinds: set[str] = set()

    def take(record: logging.LogRecord) -> None:
        kind = str(record.msg)
        if kind not in kinds:
            kinds.add(kind)
            say(Warned(kind, plain_line(record.getMessage())))

    logging.getLogger("flwr").addHandler(WarningHandler(take))


def _end_with_the_comparison() -> None:
    """End this process when the one that started it dies, or it would hold the run."""
    parent = parent_process()
    if parent is not None:
        threading.Thread(target=_outlive, args=(parent,), daemon=True).start()


def _outlive(parent: BaseProcess) -> None:
    parent.join()
    os._exit(_FAILED)


def _write_output_to(path: Path) -> None:
    """Let all that this process prints, in whatever language, go to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    with changing(path), path.open("wb") as log:
        os.dup2(log.fileno(), _STDOUT)
        os.dup2(log.fileno(), _STDERR)


def _let_go_of_the_log() -> None:
    """Print what is left; on a disk that is full nothing of that is worth a failure."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            print_no_more(stream)
