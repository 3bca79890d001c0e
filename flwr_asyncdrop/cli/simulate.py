"""``asyncdrop simulate``: one run, on this machine, on the virtual clock."""

import argparse
import shlex
from collections.abc import Sequence

from rich.console import Console

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.server import output_dir
from flwr_asyncdrop.checkpoint import newest, run_folder
from flwr_asyncdrop.cli.display import make_console, make_display, warnings_to
from flwr_asyncdrop.cli.events import Ended, RunProgress, Started
from flwr_asyncdrop.cli.flags import (
    MOST_WORKERS,
    TASK_DEFAULTS,
    add_flags,
    add_task,
    algos_from_outside,
    between,
    folder,
    given,
)
from flwr_asyncdrop.cli.preflight import check_inputs
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.runs import HISTORY, RunSpec
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.cli.worker import execute
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.observers.history import read_history
from flwr_asyncdrop.report import summarise


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = (
        "%(prog)s [--task TASK] [--KEY VALUE ...]\n"
        "       %(prog)s --resume DIR [--workers INT]"
    )
    parser.description = (
        "Train with one algorithm on a simulated fleet, or resume a run that was "
        "interrupted: its settings are read from its folder."
    )
    add_task(parser)
    parser.add_argument(
        "--workers",
        type=between(0, MOST_WORKERS),
        default=0,
        metavar="INT",
        help="number of worker processes; affects speed only (default: 0, train in "
        "this process)",
    )
    add_flags(parser, algos=algos_from_outside("--algo", words))


def run(arguments: argparse.Namespace) -> int:
    """Do the run."""
    settings, devices = _what(arguments)
    config = RunConfig.parse(settings)
    check_inputs([settings], devices)
    out = output_dir(config)
    name = f"{config.algorithm.label()} seed {config.seed}"
    spec = RunSpec(name, out, {**settings, "out-dir": str(out)}, devices)
    simulate(spec, arguments.workers, make_console())
    return 0


def _what(arguments: argparse.Namespace) -> tuple[dict[str, Value], int]:
    settings = given(arguments)
    if "resume" not in settings:
        return preset_settings(PRESETS[arguments.task], settings), arguments.devices
    for name, default in TASK_DEFAULTS.items():
        if getattr(arguments, name) != default:
            raise ConfigError(
                f"--{name} makes no difference to --resume, which reads the run's "
                "settings from its folder: leave it out"
            )
    try:
        run = folder(str(settings["resume"]))
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--resume {error}") from None
    checkpoint = newest(run)
    # The folder may have been moved since.
    out = str(run_folder(checkpoint.path))
    where = {"resume": str(checkpoint.path), "out-dir": out}
    return {**checkpoint.settings, **settings, **where}, checkpoint.devices


def simulate(run: RunSpec, workers: int, console: Console) -> None:
    """Do a run; show how far it is, what it came to, and where its files are."""
    last = RunProgress()
    with make_display(console) as display, warnings_to(display.say):
        display.show(run, Started())

        def say(progress: RunProgress) -> None:
            nonlocal last
            last = progress
            display.show(run, progress)

        execute(run, workers, say, _command(run, workers))
        display.show(run, Ended(last))
    for line in summarise(read_history(run.folder / HISTORY)).text().splitlines():
        display.say(line)
    for path in sorted(run.folder.iterdir()):
        display.say(str(path))


def _command(run: RunSpec, workers: int) -> str:
    command = f"asyncdrop simulate --resume {shlex.quote(str(run.folder))}"
    return f"{command} --workers {workers}" if workers else command
