"""One run on a LocalGrid: in this process, or as the process of a comparison's run."""

import argparse
import os
import signal
import traceback
from collections.abc import Callable, Sequence

from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.cli.events import Failed, Reporter, RunProgress, to_line
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.exceptions import AsyncDropError
from flwr_asyncdrop.simulation import LocalGrid

_CLIENT_APP = "flwr_asyncdrop.client_app:app"
_FAILED = 1


def execute(
    run: RunSpec,
    workers: int,
    say: Callable[[RunProgress], None],
    resume_command: str,
) -> None:
    """Do a run to its end, and write its files.

    `workers` affects speed only; with 0 the devices train in this process. `say` is
    told how far the run is, and people which command resumes it.
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


def add_arguments(parser: argparse.ArgumentParser, _: Sequence[str]) -> None:
    """Describe the command."""
    parser.add_argument("run", type=RunSpec.from_json)
    parser.add_argument("workers", type=int)
    parser.add_argument("channel", type=int, help="descriptor for lines of JSON")


def run(arguments: argparse.Namespace) -> int:
    """Do a run for `RunPool`."""
    # Ctrl-C goes to the whole process group; the comparison decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with os.fdopen(arguments.channel, "w") as channel:

        def say(event: RunProgress | Failed) -> None:
            channel.write(f"{to_line(event)}\n")
            channel.flush()

        try:
            command = "the same asyncdrop compare"
            execute(arguments.run, arguments.workers, say, command)
        except BrokenPipeError:
            raise  # the comparison is gone
        except Exception as error:
            traceback.print_exc()
            known = isinstance(error, AsyncDropError)
            say(Failed(str(error) if known else f"{type(error).__name__}: {error}"))
            return _FAILED
    return 0
