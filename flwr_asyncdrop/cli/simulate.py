"""``asyncdrop simulate``: one run, on this machine, on the virtual clock."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.end import FilesAtTheEnd
from flwr_asyncdrop.app.fleets import keys_in
from flwr_asyncdrop.app.run_folder import RunFolder, output_dir
from flwr_asyncdrop.checkpoint import newest, run_folder
from flwr_asyncdrop.cli.backend import Backend, add_backend, add_workers, backend_of
from flwr_asyncdrop.cli.console import make_console, print_line
from flwr_asyncdrop.cli.display import make_display, warnings_to
from flwr_asyncdrop.cli.events import (
    Ended,
    Failed,
    Preparing,
    RunProgress,
    Started,
    Waiting,
)
from flwr_asyncdrop.cli.flags import (
    TASK_DEFAULTS,
    add_flags,
    add_quiet,
    add_task,
    algos_from_outside,
    given,
)
from flwr_asyncdrop.cli.fleet_size import fleet_size
from flwr_asyncdrop.cli.lines import LineDisplay
from flwr_asyncdrop.cli.preflight import check_inputs
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.runs import RunSpec, refuse_changes
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.cli.worker import execute, summary_of
from flwr_asyncdrop.exceptions import CheckpointError, ConfigError
from flwr_asyncdrop.report import Summary
from flwr_asyncdrop.shell import quoted
from flwr_asyncdrop.storage.lock import FolderLock

_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = (
        "%(prog)s [--task TASK] [--KEY VALUE ...]\n"
        "       %(prog)s --resume DIR [--workers INT | --backend ray ...]"
    )
    parser.description = (
        "Train with one algorithm on a simulated fleet, or resume a run that was "
        "interrupted: its settings are read from its folder."
    )
    add_task(parser)
    parser.set_defaults(**dict.fromkeys(TASK_DEFAULTS))  # to know what was given
    add_workers(parser)
    add_backend(parser)
    add_quiet(parser)
    add_flags(parser, algos=algos_from_outside("--algo", words))


def run(arguments: argparse.Namespace) -> int:
    """Do the run."""
    settings, backend = given(arguments), backend_of(arguments)
    if "resume" in settings:
        _refuse_needless(arguments)
        return _resume(settings, backend, _display(arguments))
    _fill_in_defaults(arguments)
    settings = preset_settings(PRESETS[arguments.task], settings)
    config = RunConfig.parse(settings)
    devices = fleet_size(arguments.devices, [settings])
    check_inputs([settings], devices)
    with output_dir(config) as out, FolderLock(out):
        spec = _spec(config, settings, out, devices)
        if not config.overwrite:
            RunFolder(spec.folder).refuse_what_is_there(_command(spec.folder, backend))
        return simulate(spec, backend, _display(arguments))


def _refuse_needless(arguments: argparse.Namespace) -> None:
    for name in TASK_DEFAULTS:
        if getattr(arguments, name) is not None:
            raise ConfigError(
                f"--{name} makes no difference to --resume, which reads the run's "
                "settings from its folder: leave it out"
            )


def _fill_in_defaults(arguments: argparse.Namespace) -> None:
    for name, default in TASK_DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)


def _display(arguments: argparse.Namespace) -> LineDisplay:
    return make_display(make_console(), quiet=arguments.quiet)


def _resume(
    settings: Mapping[str, Value], backend: Backend, display: LineDisplay
) -> int:
    if not settings["resume"]:
        raise ConfigError("--resume is empty: name the folder of a run")
    path = Path(str(settings["resume"]))
    out = run_folder(path)
    if not out.is_dir():
        raise CheckpointError(f"{out} is no folder: nothing can be resumed from there")
    if not _is_folder(out, settings.get("out-dir")):
        raise ConfigError(
            f"--out makes no difference to --resume, which goes on in {out}: leave it "
            "out"
        )
    with FolderLock(out):
        files = RunFolder(out)
        if path == out and files.is_trained and files.log is not None:
            refuse_changes(out, files.log, settings)
            _finish(out, _command(out, backend), display)
            return 0
        checkpoint = newest(path)
        # The folder may have been moved since.
        where = {"resume": str(checkpoint.path), "out-dir": str(out)}
        told = {**keys_in(checkpoint.settings), "overwrite": False, **settings, **where}
        spec = _spec(RunConfig.parse(told), told, out, checkpoint.devices)
        return simulate(spec, backend, display)


def _is_folder(out: Path, wish: Value | None) -> bool:
    """Return whether a folder that was given, if any was, is the run's own."""
    if not wish:
        return True
    try:
        return out.samefile(str(wish))
    except OSError:  # it is not there
        return False


def _finish(out: Path, command: str, display: LineDisplay) -> None:
    """Write what a run lacks that did all its rounds, and show what it came to."""
    with display, warnings_to(display.say):
        with FilesAtTheEnd(out, display.say, lambda: command) as files:
            files.finish(over=True)
        _show_result(summary_of(out), out, display)


def _spec(
    config: RunConfig, settings: Mapping[str, Value], out: Path, devices: int
) -> RunSpec:
    name = f"{config.algorithm.label()} seed {config.seed}"
    return RunSpec(name, out, {**settings, "out-dir": str(out)}, devices)


def simulate(run: RunSpec, backend: Backend, display: LineDisplay) -> int:
    """Do a run; show how far it is, what it came to, and where its files are.

    Return the exit status.
    """
    last = RunProgress()
    with display, warnings_to(display.say):
        display.show(run, Started())

        def say(event: Preparing | RunProgress | Waiting) -> None:
            nonlocal last
            last = event if isinstance(event, RunProgress) else last
            display.show(run, event)

        execute(run, backend, say, _command(run.folder, backend))
        summary = summary_of(run.folder)
        failed = Failed(summary.cut_off) if summary.cut_off else None
        display.show(run, failed or Ended(last))
        _show_result(summary, run.folder, display)
    return _FAILED if failed else 0


def _show_result(summary: Summary, out: Path, display: LineDisplay) -> None:
    for line in summary.text().splitlines():
        print_line(line, display.console)
    for path in RunFolder(out).files.values():
        print_line(str(path), display.console)


def _command(out: Path, backend: Backend) -> str:
    return f"asyncdrop simulate --resume {quoted(str(out))}{backend.flags()}"
