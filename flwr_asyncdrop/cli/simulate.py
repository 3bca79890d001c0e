"""``asyncdrop simulate``: one run, on this machine, by the virtual clock."""

import argparse
import shlex
from pathlib import Path

from rich.console import Console

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import output_dir
from flwr_asyncdrop.checkpoint import newest, run_folder
from flwr_asyncdrop.cli.display import make_console, make_display
from flwr_asyncdrop.cli.events import Progress
from flwr_asyncdrop.cli.execute import execute
from flwr_asyncdrop.cli.flags import Value, add_flags, given
from flwr_asyncdrop.cli.logs import warnings_to
from flwr_asyncdrop.cli.options import DEFAULTS, add_task, at_least
from flwr_asyncdrop.cli.presets import TASKS
from flwr_asyncdrop.cli.runs import HISTORY, RunSpec
from flwr_asyncdrop.cli.variants import task_settings
from flwr_asyncdrop.cli.worker import Ended
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.history import read_history
from flwr_asyncdrop.report import summarise


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="one run of one algorithm",
        usage="%(prog)s [--task TASK] [--KEY VALUE ...]\n"
        "       %(prog)s --resume DIR [--workers INT]",
        description="Train with one algorithm on a simulated fleet, or go on with a "
        "run that was interrupted: its folder says how it was.",
        allow_abbrev=False,
    )
    add_task(parser)
    parser.add_argument(
        "--workers",
        type=at_least(0),
        default=0,
        metavar="INT",
        help="worker processes: they make it faster, and nothing else different "
        "(default: 0, train in this process)",
    )
    add_flags(parser)
    parser.set_defaults(command=_main)


def _main(arguments: argparse.Namespace) -> int:
    settings, devices = _what(arguments)
    config = RunConfig.parse(settings)
    folder = output_dir(config)
    run = RunSpec(
        f"{config.algo} seed {config.seed}",
        folder,
        {**settings, "out-dir": str(folder)},
        devices,
    )
    simulate(run, arguments.workers, make_console())
    return 0


def _what(arguments: argparse.Namespace) -> tuple[dict[str, Value], int]:
    """Return the run-config and the size of the fleet.

    Raises
    ------
    ConfigError
        If a run that goes on is told what only a new one can be.
    """
    told = given(arguments)
    if "resume" not in told:
        return task_settings(TASKS[arguments.task], told), arguments.devices
    for name, default in DEFAULTS.items():
        if getattr(arguments, name) != default:
            raise ConfigError(
                f"--{name} makes no difference to --resume, which goes on with the run "
                "as it was: leave it out"
            )
    checkpoint = newest(Path(str(told["resume"])).expanduser().absolute())
    where = {
        "resume": str(checkpoint.path),
        # It may have been moved since.
        "out-dir": str(run_folder(checkpoint.path)),
    }
    return {**checkpoint.settings, **told, **where}, checkpoint.devices


def simulate(run: RunSpec, workers: int, console: Console) -> None:
    """RunSpec; show how far it is, what it came to, and where its files are.

    Parameters
    ----------
    run : RunSpec
        What is run.
    workers : int
        Worker processes.
    console : Console
        Where to show it.
    """
    last = Progress()
    with make_display(console) as display, warnings_to(display.say):
        display.start(run)

        def say(progress: Progress) -> None:
            nonlocal last
            last = progress
            display.advance(run, progress)

        execute(run, workers, say, _command(run, workers))
        display.end(run, Ended(last))
    for line in summarise(read_history(run.folder / HISTORY)).text().splitlines():
        display.say(line)
    for path in sorted(run.folder.iterdir()):
        display.say(str(path))


def _command(run: RunSpec, workers: int) -> str:
    """Return what makes the run go on if it is interrupted."""
    command = f"asyncdrop simulate --resume {shlex.quote(str(run.folder))}"
    return f"{command} --workers {workers}" if workers else command
