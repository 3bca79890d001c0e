"""One table of docs/results.md: algorithms tuned alike, then measured apart.

``python -m benchmarks.fair mlp-small --data-dir DATA --out runs/fair`` tunes into
``runs/fair/tune-mlp-small`` and compares into ``runs/fair/mlp-small``. The same command
resumes. ``python -m benchmarks.tables pack runs/fair mlp-small`` keeps the histories.

A ground that is `tuned_on` another takes that one's choice. With ``mlp-small-others``
the algorithms are those of ``examples/baselines``, FedRolex and the plain ones. With
``mlp-small-adjusted`` they are three that have the loss of `asyncdrop-plus`, and with
``mlp-small-coded`` ours and the closest of the others, all with a codec of 4 bits.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flwr_asyncdrop.cli import compare, tune
from flwr_asyncdrop.cli.main import main as asyncdrop
from flwr_asyncdrop.cli.message import say
from flwr_asyncdrop.cli.parser import Parser
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import did_you_mean

_EXAMPLES = Path(__file__).parents[1] / "examples"
OUTSIDE = [str(_EXAMPLES / name) for name in ("baselines", "custom-algorithm")]
_TIE = "0.005"
"""Half a point: about a standard error, as tests have 4,000 samples."""
_ALGOS = (
    "fedavg,fedbuff,fedbuff-wait,hetero-asyncdrop,asyncdrop-plus,"
    "baselines.memories:Ringleader"
)
_DELAY_ADAPTIVE = {"baselines.steps:DelayAdaptive": ("server-lr=0.1,0.3",)}
SEEDS = range(5)
"""Of the runs that are compared; settings are chosen on others."""
OTHERS = "-others"
"""Ends the name of a ground's runs of `_OTHERS`."""
_OTHERS = {
    # A step at each arrival, or of Adam, has a scale of its own: chosen on `mlp-small`
    "baselines.memories:Ace": ("server-lr=0.03,0.1",),
    "baselines.memories:Ca2fl": (),
    **_DELAY_ADAPTIVE,
    "baselines.steps:Fadas": ("server-lr=0.001,0.003",),
    "baselines.steps:FedAdam": ("server-lr=0.003,0.01",),
    # A tenth of FedBuff's, which momentum of 0.9 makes as large
    "baselines.momentum:ApproximatedMomentum": ("server-lr=0.05,0.1",),
    "baselines.quantised:Qafel": (),
    "baselines.masked:Fiarse": (),
    "baselines.masked:FedGmr": (),
    # As in its paper, inputs are not scaled
    "baselines.fjord:Fjord": ("scale=false",),
    # It has no step of the server
    "custom_algorithm.fedrolex:FedRolex": ("drop-rate=0.125,0.25",),
    "async-fedavg": (),
    "async-fjord": (),
}
"""Algorithms, each with values to search instead of those for all."""
ADJUSTED = "-adjusted"
"""Ends the name of a ground's runs of `_ADJUSTED`."""
_ADJUSTED = {"fedbuff": (), "fedbuff-wait": (), **_DELAY_ADAPTIVE}
CODED = "-coded"
"""Ends the name of a ground's runs of `_CODED`."""
_CODED = {
    "fedavg": (),
    **_ADJUSTED,
    "baselines.masked:FedGmr": (),
    "asyncdrop-plus": (),
}
_SIDES: Mapping[str, tuple[Mapping[str, tuple[str, ...]], tuple[str, ...]]] = {
    OTHERS: (_OTHERS, ()),
    ADJUSTED: (_ADJUSTED, ("--logit-adjustment", "1")),
    CODED: (_CODED, ("--codec", "q4")),
}
"""Algorithms with values to search, and what all of them are given."""
ENDS = ("", *_SIDES)
"""What the name of a ground's runs may end with."""


@dataclass(frozen=True)
class Ground:
    """A task on a fleet, the virtual seconds of a run, and the rates to search."""

    task: str
    seconds: float
    rates: str
    flags: tuple[str, ...] = ()
    tuned_on: str = ""


GROUNDS = {
    "mlp-small": Ground("mlp-small", 4000, "0.01,0.03,0.09"),
    "cnn-small": Ground("cnn-small", 2500, "0.02,0.06,0.18"),
    "lstm-small": Ground("lstm-small", 2500, "0.005,0.015,0.045"),
    "transformer-small": Ground("transformer-small", 2500, "0.001,0.004,0.016"),
    "lm-small": Ground("lm-small", 2500, "0.002,0.008,0.032"),
    "tabular-small": Ground("tabular-small", 4000, "0.05,0.12,0.3"),
    # 10x between devices, 50 to 5 Mbit/s: a task computes for 0.25 to 2.5 s and its
    # full model travels for 0.05 to 0.5 s
    "mlp-links": Ground(
        "mlp-small",
        80,
        "0.01,0.03,0.09",
        (
            *("--speed-ratio", "10", "--step-seconds", "0.01"),
            *("--bandwidth-mbps", "50", "--jitter", "0.3"),
            *("--dropout", "0.1", "--availability", "0.8"),
        ),
    ),
    # Labels that have nothing to do with speed
    "mlp-dirichlet": Ground(
        "mlp-small",
        4000,
        "0.01,0.03,0.09",
        ("--partition", "dirichlet", "--dirichlet-alpha", "0.1"),
    ),
    "mlp-dirichlet-half": Ground(
        "mlp-small",
        4000,
        "0.01,0.03,0.09",
        ("--partition", "dirichlet", "--dirichlet-alpha", "0.5"),
    ),
    "mlp-iid": Ground("mlp-small", 4000, "0.01,0.03,0.09", ("--partition", "iid")),
    "mlp-crowd": Ground(
        "mlp-small",
        1600,
        "0.01,0.03,0.09",
        ("--devices", "1000", "--in-flight", "64"),
    ),
    # Clients that train by Adam, and labels that follow speed
    "mlp-adam": Ground(
        "mlp-small", 4000, "0.0003,0.001,0.003", ("--optimizer", "adam")
    ),
    # As many as docker/compose.edge.yml has: all of them are always in flight
    "mlp-five": Ground(
        "mlp-small",
        4000,
        "0.01,0.03,0.09",
        (
            *("--devices", "5", "--in-flight", "5", "--levels", "5"),
            *("--partition", "dirichlet", "--dirichlet-alpha", "0.5"),
        ),
    ),
    # 28 x 28, four times the hidden neurons, eight times the samples of a task
    "mlp-full": Ground(
        "mlp-fashion-mnist", 4000, "", ("--evaluate-every", "3"), "mlp-small"
    ),
    # 32 x 32, twice the channels
    "cnn-full": Ground(
        "cnn-small", 2500, "", ("--image-size", "32", "--width", "1"), "cnn-small"
    ),
    # 200 words instead of 32, batches of 64 instead of 16. A quarter of the preset's
    # steps: else 800 s are four rounds of the slowest, and hold as many tests
    "lstm-full": Ground(
        "lstm-imdb",
        800,
        "",
        (
            *("--local-steps", "10"),
            *("--evaluate-every", "1", "--test-samples", "5000"),
        ),
        "lstm-small",
    ),
    # 200 words instead of 32, 10,000 different ones instead of 2,000, twice the
    # features and heads, twice the samples of a step
    "transformer-full": Ground(
        "transformer-small",
        800,
        "",
        (
            *("--text-length", "200", "--vocabulary-size", "10000", "--width", "2"),
            *("--batch-size", "32", "--local-steps", "10"),
            *("--evaluate-every", "1", "--test-samples", "5000"),
        ),
        "transformer-small",
    ),
    # 32 words of a review instead of 16, 4,000 different ones instead of 1,000, twice
    # the features and heads
    "lm-full": Ground(
        "lm-small",
        2500,
        "",
        ("--text-length", "32", "--vocabulary-size", "4000", "--width", "2"),
        "lm-small",
    ),
    # Four times the hidden neurons and the samples of a task, all 10,787 for testing
    "tabular-full": Ground(
        "tabular-small",
        4000,
        "",
        ("--width", "4", "--batch-size", "128", "--test-samples", "0"),
        "tabular-small",
    ),
}

NAMES = tuple(f"{ground}{end}" for end in ENDS for ground in GROUNDS)
"""Each ground with the first algorithms, and with those of each end."""


def ground_of(name: str) -> str:
    """Return the name of the ground of a table."""
    for end in _SIDES:
        name = name.removesuffix(end)
    return name


def commands(name: str, out: Path, flags: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words of `tune`, and of the `compare` that follows it."""
    ground = ground_of(name)
    suffix = name.removeprefix(ground)
    tuned_on = GROUNDS[ground].tuned_on or ground
    searched = ["lr=" + GROUNDS[tuned_on].rates, "server-lr=0.5,1.0"]
    algos = _ALGOS
    if suffix in ("", OTHERS):
        searched.append("alpha=0.25,0.5")
    if suffix:
        table, given = _SIDES[suffix]
        algos = ",".join(table)
        searched += [f"{algo}:{own}" for algo in table for own in table[algo]]
        flags = (*given, *flags)
    search = [word for each in searched for word in ("--search", each)]
    choice = out / f"tune-{tuned_on}{suffix}"
    tune = ["tune", *_run(tuned_on, algos, flags), *search, "--rungs", "1"]
    seeds = f"{SEEDS[0]}-{SEEDS[-1]}"
    measured = ["--seeds", seeds, "--tuned", str(choice / "tuned.json")]
    compare = ["compare", *_run(ground, algos, flags), *measured]
    return (
        [*tune, "--tie", _TIE, "--out", str(choice)],
        [*compare, "--out", str(out / name)],
    )


def _run(name: str, algos: str, flags: Sequence[str]) -> list[str]:
    ground = GROUNDS[name]
    return [
        *("--task", ground.task, "--algos", algos),
        *("--max-seconds", f"{ground.seconds:g}", "--num-rounds", "10000"),
        *("--lr-milestones", f"{ground.seconds / 2:g}s,{ground.seconds * 0.75:g}s"),
        *("--outlier-factor", "0", *ground.flags, *flags),
    ]


def check(name: str, flags: Sequence[str]) -> None:
    """Refuse flags that a ground has set, or that one of its commands does not know.

    Of a flag that is given twice the last one counts, and `compare` would refuse its
    words when `tune` has run for hours. Algorithms may be others.
    """
    ours = {word for each in commands(name, Path("out"), ()) for word in each}
    for flag in (flag.partition("=")[0] for flag in flags):
        if flag.startswith("--") and flag in ours - {"--algos"}:
            raise ConfigError(f"{flag} is set by the ground: leave it out")
    words = commands(name, Path("out"), flags)
    for command, (command_name, *rest) in zip((tune, compare), words, strict=True):
        parser = Parser(prog=f"asyncdrop {command_name}", allow_abbrev=False)
        command.add_arguments(parser, rest)
        if unknown := parser.parse_known_args(rest)[1]:
            parser.refuse(unknown)


def main() -> int:
    """Tune, then compare."""
    parser = Parser(prog="fair", description=__doc__, allow_abbrev=False)
    parser.add_argument("ground", metavar="NAME", help=f"{', '.join(NAMES)}")
    parser.add_argument("--out", type=Path, required=True)
    # A process of a run finds the baselines as a user's own algorithm: by Python's path
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, (*OUTSIDE, os.environ.get("PYTHONPATH")))
    )
    sys.path[:0] = OUTSIDE
    try:
        arguments, flags = parser.parse_known_args()
        if arguments.ground not in NAMES:
            hint = did_you_mean(arguments.ground, NAMES)
            raise ConfigError(
                f"no ground is {arguments.ground!r}: {hint or 'see --help'}"
            )
        check(arguments.ground, flags)
    except ConfigError as error:
        say(str(error))
        return 2
    for words in commands(arguments.ground, arguments.out, flags):
        if status := asyncdrop(words):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
