"""``asyncdrop compare``: algorithms and seeds side by side on all cores."""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from flwr_asyncdrop.algorithms import ALGORITHMS
from flwr_asyncdrop.app.config import Value
from flwr_asyncdrop.cli.backend import Backend, add_backend, backend_of
from flwr_asyncdrop.cli.batch import do_missing
from flwr_asyncdrop.cli.console import make_console, print_line
from flwr_asyncdrop.cli.display import displays
from flwr_asyncdrop.cli.flags import (
    NOT_OF_MANY,
    add_flags,
    add_jobs,
    add_quiet,
    add_task,
    algos_from_outside,
    file,
    folder,
    given,
    seeds,
    some_names,
    values,
)
from flwr_asyncdrop.cli.fleet_size import fleet_size
from flwr_asyncdrop.cli.preflight import check_inputs, refuse_no_table
from flwr_asyncdrop.cli.presets import ABLATIONS, PRESETS
from flwr_asyncdrop.cli.runs import RunSpec, all_runs, make_folder_of_runs
from flwr_asyncdrop.cli.shards import agree, deal, describe, shard, standing
from flwr_asyncdrop.cli.tuned import Tuned, ground_of
from flwr_asyncdrop.cli.variants import build_variants
from flwr_asyncdrop.exceptions import (
    ConfigError,
    FolderError,
    FolderInUseError,
)
from flwr_asyncdrop.report import comparison_table
from flwr_asyncdrop.shell import command_of
from flwr_asyncdrop.storage.lock import FolderLock

_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = (
        "%(prog)s [--task TASK] [--algos NAME,...] [--seeds INT,...] --out DIR "
        "[--KEY VALUE ...]"
    )
    parser.description = (
        "Compare algorithms on a simulated fleet. The same command resumes a "
        "comparison that was interrupted: it does what is missing, and resumes half "
        "a run from its last checkpoint."
    )
    algos = algos_from_outside("--algos", words)
    add_task(parser)
    parser.add_argument(
        "--algos",
        type=some_names,
        metavar="NAME,...",
        help="algorithms (default: those of the ablation; else all but those that "
        "leave out whole blocks, which many models do not have)",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        default=[0, 1, 2],
        metavar="INT,...",
        help="seeds, e.g. 0,1,5 or 0-2 (default: 0-2)",
    )
    parser.add_argument(
        "--vary",
        type=partial(values, algos=algos),
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="run every algorithm with each of these values of a key; may be repeated "
        "for all combinations",
    )
    parser.add_argument(
        "--tuned",
        type=file,
        metavar="FILE",
        help="take the settings that `asyncdrop tune` has chosen for each algorithm",
    )
    parser.add_argument(
        "--ablation",
        choices=tuple(ABLATIONS),
        metavar="NAME",
        help="the algorithms and values of one of the paper's ablations: "
        f"{', '.join(ABLATIONS)}",
    )
    add_jobs(parser)
    parser.add_argument(
        "--out",
        type=folder,
        required=True,
        metavar="DIR",
        help="folder of the comparison: a run goes to DIR/ALGORITHM/seed-N",
    )
    parser.add_argument(
        "--shard",
        type=shard,
        metavar="I/N",
        help="do part I of N of the runs, e.g. 1/4 on the first of four machines, with "
        "the same other arguments on each (default: all runs)",
    )
    add_backend(parser)
    add_quiet(parser)
    add_flags(parser, algos=algos, without=NOT_OF_MANY)


def run(arguments: argparse.Namespace) -> int:
    """Do the runs that are missing, and print the table."""
    backend = backend_of(arguments)
    explicit = given(arguments)
    algorithms, vary = _what(arguments)
    if both := sorted(explicit.keys() & vary.keys()):
        raise ConfigError(f"{both[0]} varies: leave --{both[0]} out")
    tuned = None
    if arguments.tuned is not None:
        tuned = Tuned.read(arguments.tuned)
        tuned.check(arguments.seeds, {*explicit, *vary})
    variants = build_variants(
        algorithms,
        PRESETS[arguments.task],
        explicit,
        vary,
        tuned.of if tuned else lambda name: {},
    )
    settings = [variant.settings for variant in variants]
    devices = fleet_size(arguments.devices, settings)
    check_inputs(settings, devices)
    out = make_folder_of_runs(arguments.out, searches=False)
    runs = all_runs(variants, arguments.seeds, devices, out)
    refuse_no_table(runs, out)
    console = make_console()
    if tuned is not None:
        ground = ground_of(arguments.task, devices, {**explicit, **vary})
        if other := tuned.differences(ground):
            line = f"{arguments.tuned} was tuned on other ground: {'; '.join(other)}"
            print_line(line, console)
    if arguments.shard is not None:
        return _run_shard(arguments, runs, backend, console)
    with FolderLock(out):
        show = displays(arguments, console)
        undone = sum(do_missing(runs, arguments.jobs, backend, show))
    if undone < len(runs):
        _print_table(out, console)
    return _FAILED if undone else 0


def _run_shard(
    arguments: argparse.Namespace,
    runs: Sequence[RunSpec],
    backend: Backend,
    console: Console,
) -> int:
    """Do what is missing of one shard; the table comes with the last of all runs."""
    own, out = arguments.shard, arguments.out
    description = describe(runs, arguments.seeds, own.count)
    agree(out, description)
    dealt = deal(runs, len(arguments.seeds), own.count)
    try:
        with FolderLock(out, own.lock):
            share = dealt[own.number - 1]
            show = displays(arguments, console)
            undone = sum(do_missing(share, arguments.jobs, backend, show))
    except FolderInUseError as busy:
        raise FolderError(
            f"shard {own} of {out} is done by {busy.holder}: let it end"
        ) from None
    # Again: a network file system may have hidden that another one wrote it, too.
    agree(out, description)
    found = standing(dealt, own, undone, out)
    for line in found.lines:
        print_line(line, console)
    if found.is_complete:
        _print_table(out, console)
    else:
        print_line(f"report on the whole, when it is there: {_report(out)}", console)
    return _FAILED if undone else 0


def _print_table(out: Path, console: Console) -> None:
    console.print(comparison_table([out]))
    print_line(f"figures and a page with everything: {_report(out)}", console)


def _report(out: Path) -> str:
    return command_of(["asyncdrop", "report", str(out)])


def _what(
    arguments: argparse.Namespace,
) -> tuple[Sequence[str], Mapping[str, Sequence[Value]]]:
    """Return the algorithms, and the keys that vary with their values."""
    algorithms: Sequence[str] = [
        name for name, rules in ALGORITHMS.items() if rules.units == "channels"
    ]
    vary: dict[str, Sequence[Value]] = {}
    if arguments.ablation:
        ablation = ABLATIONS[arguments.ablation]
        algorithms, vary = ablation.algorithms, dict(ablation.vary)
    named = [key for key, _ in arguments.vary]
    if twice := [key for key in named if named.count(key) > 1]:
        raise ConfigError(f"{twice[0]} varies twice: give all of its values at once")
    return arguments.algos or algorithms, {**vary, **dict(arguments.vary)}
