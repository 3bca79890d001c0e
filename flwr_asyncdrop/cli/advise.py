"""``asyncdrop advise``: which algorithm, drop rate and buffer suit a fleet."""

import argparse
from collections.abc import Sequence
from functools import partial

from flwr_asyncdrop.cli.advice_text import limits, lines
from flwr_asyncdrop.cli.answer import find, write_answer
from flwr_asyncdrop.cli.backend import add_backend, backend_of
from flwr_asyncdrop.cli.batch import choose_among
from flwr_asyncdrop.cli.budget import choose_plan, in_runs, in_seconds
from flwr_asyncdrop.cli.console import make_console, print_if_possible, print_line
from flwr_asyncdrop.cli.display import displays
from flwr_asyncdrop.cli.flags import (
    NOT_OF_MANY,
    add_flags,
    add_jobs,
    add_quiet,
    add_task,
    algos_from_outside,
    between,
    folder,
    positive,
    searched,
    seeds,
    some_names,
)
from flwr_asyncdrop.cli.question import ALGOS, MOST_CANDIDATES, question_of
from flwr_asyncdrop.cli.race import lanes_of
from flwr_asyncdrop.cli.runs import MOST_RUNS, RunSpec, make_folder_of_runs
from flwr_asyncdrop.cli.timing import measured
from flwr_asyncdrop.cli.variants import MOST_VARIANTS
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.storage.lock import FolderLock

_FAILED = 1


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = (
        "%(prog)s [--task TASK] [--trace FILE] [--budget RUNS | --minutes M] --out DIR "
        "[--KEY VALUE ...]"
    )
    parser.description = (
        "Recommend an algorithm with its learning rate, drop rate and buffer for a "
        "fleet: settings of each algorithm are tried in short simulated runs, the best "
        "ones are compared with several seeds, and all have the same virtual time. The "
        "same command resumes."
    )
    algos = algos_from_outside("--algos", words)
    add_task(parser)
    parser.add_argument(
        "--algos",
        type=some_names,
        default=list(ALGOS),
        metavar="NAME,...",
        help=f"algorithms (default: {','.join(ALGOS)})",
    )
    parser.add_argument(
        "--search",
        type=partial(searched, algos=algos),
        action="append",
        default=[],
        metavar="[NAME:]KEY=VALUE,...",
        help="a key and the values to try, for all algorithms to which it means "
        "anything or for the one that is named; may be repeated (default: three "
        "learning rates around the task's, drop-rate=0.125,0.25,0.5, and a quarter, "
        "half and all of the devices in flight for buffer-size)",
    )
    parser.add_argument(
        "--candidates",
        type=between(1, MOST_VARIANTS),
        default=MOST_CANDIDATES,
        metavar="INT",
        help="combinations tried for each algorithm, drawn at random if there are more "
        f"(default: {MOST_CANDIDATES})",
    )
    parser.add_argument(
        "--within",
        type=positive,
        metavar="SECONDS",
        help="virtual seconds of a whole run (default: what the task's rounds take if "
        "no device waits for another)",
    )
    parser.add_argument(
        "--target",
        default="0.95best",
        metavar="VALUE",
        help="what is to be reached soonest, e.g. 0.9; 0.95best is 0.95 of the best "
        "candidate's final metric (default: 0.95best)",
    )
    budget = parser.add_mutually_exclusive_group()
    budget.add_argument(
        "--budget",
        type=between(1, MOST_RUNS),
        metavar="RUNS",
        help="most work to do, as a number of whole runs (default: no limit)",
    )
    budget.add_argument(
        "--minutes",
        type=positive,
        metavar="FLOAT",
        help="about so many real minutes; a run is timed first (default: no limit)",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        default=[0, 1, 2, 3, 4],
        metavar="INT,...",
        help="seeds of the comparison, at least 3; intervals take 5 (default: 0-4)",
    )
    add_jobs(parser)
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="folder of all runs"
    )
    add_backend(parser)
    add_quiet(parser)
    add_flags(parser, algos=algos, without=(*NOT_OF_MANY, "clock", "max-seconds"))


def run(arguments: argparse.Namespace) -> int:
    """Race the candidates, compare the best of each algorithm, and advise."""
    backend = backend_of(arguments)
    asked = question_of(arguments)
    lanes = lanes_of(asked.algos, asked.terms)
    plan = None
    if not arguments.minutes:
        plan = choose_plan(asked, *in_runs(arguments.budget))
    out = make_folder_of_runs(arguments.out, searches=True)
    console = make_console()
    undone = 0

    def say(line: str) -> None:
        print_line(line, console)

    def do(what: str, runs: Sequence[RunSpec], jobs: int = arguments.jobs) -> None:
        nonlocal undone
        if not arguments.quiet:
            seconds = runs[0].config.max_seconds
            line = f"{what}: {counted(len(runs), 'run')} of {seconds:,g} virtual s"
            print_if_possible(line, console)
        undone += choose_among(runs, jobs, backend, displays(arguments, console))

    with FolderLock(out):
        if plan is None:
            timing = measured(
                lanes, asked.terms, out, lambda runs: do("timed", runs, 1)
            )
            allowed = in_seconds(arguments.minutes * 60 * arguments.jobs, timing)
            plan = choose_plan(asked, *allowed)
        answer = find(asked, plan, out, do)
        path = write_answer(answer, out)
    for line in lines(answer.advice):
        say(line)
    for note in [*answer.notes, *limits(answer.advice)]:
        say(f"Note: {note}.")
    say("Run it, in simulation and with Flower:")
    for command in answer.commands.values():
        say(f"  {command}")
    say(f"All figures: {path}")
    return _FAILED if undone else 0
