"""One run, on a LocalGrid."""

from collections.abc import Callable

from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.cli.events import Progress, Reporter
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.simulation import LocalGrid

_CLIENT_APP = "flwr_asyncdrop.client_app:app"


def execute(
    run: RunSpec, workers: int, say: Callable[[Progress], None], resume_command: str
) -> None:
    """RunSpec to the end, and write the run's files.

    Whether there are worker processes, and how many, makes no difference to them.

    Parameters
    ----------
    run : RunSpec
        What is run.
    workers : int
        Worker processes; with 0 the devices train in this process.
    say : callable
        Told how far it is.
    resume_command : str
        What makes it go on if it is interrupted, for people.

    Raises
    ------
    AsyncDropError
        If the run cannot go on.
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
