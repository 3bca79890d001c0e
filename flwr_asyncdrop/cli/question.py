"""What ``asyncdrop advise`` is asked: the fleet, the goal, and what is tried."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.data import Dataset
from flwr_asyncdrop.app.experiment import load_data
from flwr_asyncdrop.app.learning import Classification, NextToken
from flwr_asyncdrop.cli.equal_time import EqualTime, default_seconds
from flwr_asyncdrop.cli.flags import given
from flwr_asyncdrop.cli.fleet_size import fleet_size
from flwr_asyncdrop.cli.preflight import check_inputs
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.race import Terms, lanes_of
from flwr_asyncdrop.cli.searched import Search, refuse_grounds
from flwr_asyncdrop.cli.variants import meaningful
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.target import read_target

ALGOS = ("fedavg", "fedbuff", "asyncdrop", "hetero-asyncdrop", "asyncdrop-plus")
MOST_CANDIDATES = 9
FEWEST_SEEDS = 3

_SEARCH_SEED = 1000  # which the comparison must not use
_DROP_RATES = (0.125, 0.25, 0.5)
_LR_FACTORS = (0.4, 1, 2.5)
_LENGTHS = frozenset({"lr-milestones", "max-seconds", "num-rounds"})


@dataclass(frozen=True)
class Question:
    """What is asked: `terms` are those of the most thorough search.

    `seeds` are of the comparison, and `measure` is that of the terms.
    """

    task: str
    algos: tuple[str, ...]
    terms: Terms
    measure: EqualTime
    seeds: tuple[int, ...]


def question_of(arguments: argparse.Namespace) -> Question:
    """Read the flags; ConfigError or DataError, before anything runs."""
    _check_seeds(arguments.seeds)
    keys = {each.key for each in arguments.search}
    refuse_grounds(keys)
    if fixed := sorted(_LENGTHS & keys):
        raise ConfigError(
            f"{fixed[0]} is the same for all candidates, which have the same time: "
            "leave it out of --search"
        )
    explicit = given(arguments)
    algos = tuple(dict.fromkeys(arguments.algos))
    devices = fleet_size(arguments.devices, [explicit])
    preset = PRESETS[arguments.task]
    # All keys are of any use, and each algorithm can run with what is given.
    rules = Terms(
        preset=preset,
        explicit=explicit,
        search=Search(),
        candidates=1,
        rungs=0,
        eta=2,
        seeds=(_SEARCH_SEED,),
        devices=devices,
    )
    settings = [lane.settings({}) for lane in lanes_of(algos, rules)]
    check_inputs(settings, devices)
    config = RunConfig.parse(settings[0])
    _check_target(arguments.target, load_data(config))
    seconds = arguments.within or default_seconds(config, devices)
    measure = EqualTime(seconds, arguments.target)
    defaults = _default_search(algos, config, devices, explicit)
    search = Search.read(arguments.search, algos, defaults)
    terms = replace(
        rules, search=search, candidates=arguments.candidates, measure=measure
    )
    # Of a candidate whatever cannot be run is refused.
    variants = [
        lane.variant(values)
        for lane in lanes_of(algos, terms)
        for values in lane.candidates
    ]
    check_inputs([variant.settings for variant in variants], devices)
    seeds = tuple(dict.fromkeys(arguments.seeds))
    return Question(arguments.task, algos, terms, measure, seeds)


def _check_seeds(seeds: Sequence[int]) -> None:
    if (count := len(set(seeds))) < FEWEST_SEEDS:
        raise ConfigError(
            f"--seeds has {counted(count, 'seed')}, too few to compare with: give at "
            f"least {FEWEST_SEEDS}, e.g. --seeds 0-4"
        )
    if _SEARCH_SEED in seeds:
        raise ConfigError(
            f"seed {_SEARCH_SEED} chooses the settings, so its result would say too "
            "much: compare with other seeds"
        )


def _check_target(target: str, data: Dataset) -> None:
    known = isinstance(data.task, Classification | NextToken)
    if target != "auto":
        read_target(target, Metric("accuracy" if known else "loss"))


def _default_search(
    algos: Sequence[str],
    config: RunConfig,
    devices: int,
    explicit: Mapping[str, Value],
) -> dict[str, Sequence[Value]]:
    """Return what is tried of the keys that are not given, and of use to somebody."""
    slots = min(config.in_flight, devices)
    buffers = {max(slots // 4, 1), max(slots // 2, 1), slots}
    search: dict[str, Sequence[Value]] = {
        "lr": [float(f"{config.lr * factor:.3g}") for factor in _LR_FACTORS],
        "drop-rate": _DROP_RATES,
        "buffer-size": sorted(buffers),
    }
    return {
        key: values
        for key, values in search.items()
        if key not in explicit and _is_of_use(algos, key)
    }


def _is_of_use(algos: Sequence[str], key: str) -> bool:
    try:
        meaningful(algos, (key,))
    except ConfigError:
        return False
    return True
