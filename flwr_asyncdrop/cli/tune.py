"""``asyncdrop tune``: the same budget to find the settings of every algorithm."""

import argparse
from collections.abc import Sequence
from functools import partial

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.fleets import trace_digest
from flwr_asyncdrop.cli.backend import add_backend, backend_of
from flwr_asyncdrop.cli.batch import choose_among
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
    given,
    positive,
    searched,
    seeds,
    some_names,
    words_of,
)
from flwr_asyncdrop.cli.fleet_size import fleet_size
from flwr_asyncdrop.cli.preflight import check_inputs
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.race import Lane, Terms, lanes_of, race
from flwr_asyncdrop.cli.runs import RunSpec, make_folder_of_runs
from flwr_asyncdrop.cli.searched import Search, refuse_grounds
from flwr_asyncdrop.cli.tuned import references, with_earlier, write_tuned
from flwr_asyncdrop.cli.variants import MOST_VARIANTS
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.shell import command_of
from flwr_asyncdrop.storage.lock import FolderLock


def add_arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """Describe the command."""
    parser.usage = (
        "%(prog)s [--task TASK] --algos NAME,... --search KEY=VALUE,... --out DIR "
        "[--KEY VALUE ...]"
    )
    parser.description = (
        "Find the settings of each algorithm, with the same budget for all: values are "
        "tried in short runs, and the best of them in longer ones. `asyncdrop compare "
        "--tuned DIR/tuned.json` then compares them with other seeds. The same command "
        "resumes."
    )
    algos = algos_from_outside("--algos", words)
    add_task(parser)
    parser.add_argument(
        "--algos",
        type=some_names,
        required=True,
        metavar="NAME,...",
        help="algorithms",
    )
    parser.add_argument(
        "--search",
        type=partial(searched, algos=algos),
        action="append",
        required=True,
        metavar="[NAME:]KEY=VALUE,...",
        help="a key and the values to try; may be repeated for all combinations. An "
        "algorithm to which a key means nothing does without it. With its name before "
        "the key, e.g. fedbuff:lr=0.1,0.2, values are for one algorithm alone, instead "
        "of those for all",
    )
    parser.add_argument(
        "--candidates",
        type=between(1, MOST_VARIANTS),
        default=27,
        metavar="INT",
        help="combinations tried for each algorithm, drawn at random if there are more "
        "(default: 27)",
    )
    parser.add_argument(
        "--rungs",
        type=between(1, 10),
        default=3,
        metavar="INT",
        help="lengths of runs; the last is the whole run (default: 3)",
    )
    parser.add_argument(
        "--eta",
        type=between(2, 10),
        default=3,
        metavar="INT",
        help="from one length to the next, runs are so many times as long, and one "
        "candidate in so many stays (default: 3)",
    )
    parser.add_argument(
        "--seeds",
        type=seeds,
        default=[1000],
        metavar="INT,...",
        help="seeds to tune with, which a comparison must not use (default: 1000)",
    )
    parser.add_argument(
        "--tie",
        type=positive,
        default=0.0,
        metavar="FLOAT",
        help="whole runs that end within so much of the best one's metric count as "
        "good as it, and the best of them on average over its time wins, e.g. 0.005 "
        "for half a point of accuracy (default: no ties)",
    )
    add_jobs(parser)
    parser.add_argument(
        "--out", type=folder, required=True, metavar="DIR", help="folder of all runs"
    )
    add_backend(parser)
    add_quiet(parser)
    add_flags(parser, algos=algos, without=NOT_OF_MANY)


def run(arguments: argparse.Namespace) -> int:
    """Race the candidates, and write what was chosen."""
    backend = backend_of(arguments)
    explicit = given(arguments)
    terms = Terms(
        preset=PRESETS[arguments.task],
        explicit=explicit,
        search=Search.read(arguments.search, arguments.algos),
        candidates=arguments.candidates,
        rungs=arguments.rungs,
        eta=arguments.eta,
        seeds=arguments.seeds,
        devices=fleet_size(arguments.devices, [explicit]),
        tie=arguments.tie,
    )
    refuse_grounds(terms.search.keys)
    _check_lengths(terms)
    lanes = lanes_of(arguments.algos, terms)
    settings = [lane.settings(each) for lane in lanes for each in lane.candidates]
    check_inputs(settings, terms.devices)
    _check_shortest(lanes)
    digest = trace_digest(RunConfig.parse(settings[0]))
    out = make_folder_of_runs(arguments.out, searches=True)
    console = make_console()

    def say(line: str) -> None:
        print_line(line, console)

    def do(rung: int, runs: Sequence[RunSpec]) -> None:
        if not arguments.quiet:
            print_if_possible(f"rung {rung} of {arguments.rungs}", console)
        choose_among(runs, arguments.jobs, backend, displays(arguments, console))

    with FolderLock(out):
        lanes = race(arguments.algos, terms, out, do)
        content = {
            "task": arguments.task,
            "devices": terms.devices,
            "given": terms.explicit,
            **digest,
            "seeds": arguments.seeds,
            "searched": terms.search.shared,
            "candidates": arguments.candidates,
            "rungs": arguments.rungs,
            "eta": arguments.eta,
            "tie": arguments.tie,
            "algorithms": {lane.label: lane.report() for lane in lanes},
            "references": references(arguments.algos),
            "chosen": {lane.label: lane.winner.values for lane in lanes},
        }
        joined, gone = with_earlier(out, content)
        path = write_tuned(out, joined)
    for lane in lanes:
        for line in lane.said():
            say(line)
    for line in gone:
        say(line)
    first = max(arguments.seeds) + 1 if {0, 1, 2} & {*arguments.seeds} else 0
    flags = {
        "task": arguments.task,
        "devices": terms.devices,
        "algos": ",".join(dict.fromkeys(arguments.algos)),
        **terms.explicit,
        "tuned": path,
        "seeds": f"{first}-{first + 2}",
        "out": f"{out}-compared",
    }
    command = command_of(["asyncdrop", "compare", *words_of(flags)])
    say(f"compare them, with other seeds: {command}")
    return 0


def _check_lengths(terms: Terms) -> None:
    """Refuse what would make runs longer or shorter than their rung says."""
    for key in ("num-rounds", "max-seconds"):
        if key in terms.search.keys:
            raise ConfigError(
                f"{key} is how long a run is, which is the same for all: leave it out "
                "of --search"
            )
    # A rung shortens runs by their rounds, and knows no seconds.
    in_seconds = [
        key
        for key, values in (
            *((key, [value]) for key, value in terms.explicit.items()),
            *terms.search.values(),
        )
        if _counts_seconds(key, values)
    ]
    if in_seconds and terms.rungs > 1:
        raise ConfigError(
            f"{in_seconds[0]} is in seconds, which stay what they are in shorter runs: "
            "give --rungs 1, so that all runs are whole ones"
        )


def _check_shortest(lanes: Sequence[Lane]) -> None:
    """Refuse what is possible in whole runs and not in those of the first rung."""
    for lane in lanes:
        division = lane.rungs[0].division
        for values in lane.candidates:
            try:
                lane.variant(values, division)
            except ConfigError as error:
                if division == 1:
                    raise
                raise ConfigError(
                    f"in the first runs, which are 1/{division} as long as the last: "
                    f"{error}; or give fewer --rungs, a smaller --eta, or more "
                    "--num-rounds"
                ) from error


def _counts_seconds(key: str, values: Sequence[Value]) -> bool:
    if key == "max-seconds":
        return any(values)
    return key == "lr-milestones" and any(str(value).endswith("s") for value in values)
