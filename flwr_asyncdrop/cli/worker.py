"""One run on a LocalGrid: in this process, or in one of a comparison's."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.cli.events import Failed, Reporter, RunProgress
from flwr_asyncdrop.cli.runs import LOG, RunSpec
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.simulation import LocalGrid

_CLIENT_APP = "flwr_asyncdrop.client_app:app"
_STDOUT, _STDERR = 1, 2
_FAILED = 1


def execute(
    run: RunSpec, workers: int, say: Callable[[RunProgress], None], resume_command: str
) -> None:
    """Do a run to its end, and write its files.

    With no `workers` the devices train in this process.
    """
    config = run.config
    with LocalGrid(
        _CLIENT_APP,
        num_nodes=run.devices,
        workers=workers,
        run_config=run.settings,
        threads_per_worker=config.threads,
    ) as grid:
        run_experiment(grid, config, [Reporter(say)], resume_command)


def work(
    run: RunSpec, workers: int, channel: "Connection[RunProgress | Failed, None]"
) -> None:
    """Do a run in a process of its own, which exits with 0 if all is well."""
    # Ctrl-C goes to the whole process group; the comparison decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _write_output_to(run.folder / LOG)
        execute(run, workers, channel.send, "the same asyncdrop compare")
    except BrokenPipeError:
        sys.exit(_FAILED)  # the comparison is gone
    except Exception as error:
        traceback.print_exc()
        known = isinstance(error, AsyncDropError)
        reason = str(error) if known else f"{type(error).__name__}: {error}"
        channel.send(Failed(reason))
        sys.exit(_FAILED)


def _write_output_to(path: Path) -> None:
    """Let all that this process prints, in whatever language, go to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with path.open("wb") as log:
        os.dup2(log.fileno(), _STDOUT)
        os.dup2(log.fileno(), _STDERR)
