"""How much of a speed group's change its next change repeats.

`LatestPerGroup`, the aggregator of asyncdrop-plus, applies the change of a speed group
until the group sends a newer one. That is worth as much as the one resembles the other.
Here it is measured by the cosine of two successive changes of a group, over the
coordinates that both trained. 1: the same direction again; 0: the one says nothing
about the other.

    python -m benchmarks.persistence --task mlp-fashion-mnist --data-dir DATA
    python -m benchmarks.persistence --task lstm-imdb --data-dir DATA --num-rounds 11

The tasks are those of ``asyncdrop compare``, and so are ``--no-waits`` and
``--no-adaptive-memory``. Less than two minutes each, on one core.
"""

import argparse
import logging
import statistics
from collections.abc import Mapping
from functools import partial
from typing import ClassVar

import torch
from flwr.app import ConfigRecord

from benchmarks.figures import Figure, show
from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Aggregator, LatestPerGroup, Update
from flwr_asyncdrop.aggregation.changes import Change, change_of, is_weight
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.experiment import initial_model
from flwr_asyncdrop.app.server import build_strategy
from flwr_asyncdrop.cli.presets import PRESETS
from flwr_asyncdrop.cli.variants import preset_settings
from flwr_asyncdrop.simulation import LocalGrid
from flwr_asyncdrop.submodel import State, extract, merge_

__all__ = ["Watched", "cosine", "persistence_figures"]

NODES = 104
_SWITCHES = ("waits", "adaptive-memory")

Value = str | int | float


def cosine(state: State, last: Change, new: Change) -> float:
    """Return the cosine of two changes on the coordinates that both have.

    Parameters
    ----------
    state : dict of str to Tensor
        The global model, for its shapes.
    last, new : Change
        Of the same group.
    """
    before = _at(state, last.delta, last, new)
    ones = {name: torch.ones_like(delta) for name, delta in last.delta.items()}
    there = _at(state, ones, last, new)
    names = [name for name in new.delta if is_weight(name, state[name])]
    first = torch.cat([before[name].flatten() for name in names])
    second = torch.cat([(new.delta[name] * there[name]).flatten() for name in names])
    return float(torch.cosine_similarity(first, second, dim=0))


def _at(state: State, values: State, last: Change, new: Change) -> State:
    """Return `values` of `last` where `new` is, and zeros where only `new` is."""
    full = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    merge_(full, values, last.indices, 1.0)
    return extract(full, new.indices)


class Watched(Aggregator):
    """A `LatestPerGroup` that is looked at.

    Attributes
    ----------
    cosines : list of float
        One for every change but the first of each group.
    """

    needs_base: ClassVar[bool] = True

    def __init__(self, remembered: LatestPerGroup) -> None:
        self.waits_for = remembered.waits_for
        self.wait_limit = remembered.wait_limit
        self.updates_per_version = remembered.updates_per_version
        self.collects = remembered.collects
        self._remembered = remembered
        self.cosines: list[float] = []

    def merge(self, state: State, update: Update) -> bool:
        """Compare the update with what it replaces, and pass it on."""
        latest = self._remembered._latest.changes
        if found := latest.get(self._remembered.group_of(update)):
            last, _ = found
            self.cosines.append(cosine(state, last, change_of(update)))
        return self._remembered.merge(state, update)

    def flush(self, state: State) -> bool:
        """Have it take its step."""
        return self._remembered.flush(state)


def persistence_figures(settings: Mapping[str, Value]) -> list[Figure]:
    """Run asyncdrop-plus, and return the mean cosine of each third of the run."""
    config = RunConfig.parse(settings)
    strategy = build_strategy(config)
    build = strategy.build_aggregator
    watched = []

    def watch(in_flight: int) -> Aggregator:
        remembered = build(in_flight)
        assert isinstance(remembered, LatestPerGroup)  # noqa: S101  # asyncdrop-plus's
        watched.append(Watched(remembered))
        return watched[-1]

    strategy.build_aggregator = watch  # type: ignore[method-assign]
    with LocalGrid(
        "flwr_asyncdrop.client_app:app",
        num_nodes=NODES,
        run_config=settings,
        threads_per_worker=config.threads,
    ) as grid:
        strategy.start(
            grid,
            wire.to_record(initial_model(config).state_dict()),
            num_rounds=config.num_rounds,
            train_config=ConfigRecord({"lr": config.lr}),
        )
    cosines = watched[-1].cosines
    third = len(cosines) // 3
    parts = {
        "first": cosines[:third],
        "second": cosines[third : 2 * third],
        "last": cosines[2 * third :],
    }
    return [
        Figure(f"cosine_{name}_third", statistics.mean(part))
        for name, part in parts.items()
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", choices=sorted(PRESETS), default="digits")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-rounds", type=int, help="else as long as the task is")
    for key in _SWITCHES:
        parser.add_argument(f"--no-{key}", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    explicit: dict[str, Value] = {
        "algo": "asyncdrop-plus",
        "data-dir": arguments.data_dir,
        "seed": arguments.seed,
    }
    for key in _SWITCHES:
        if vars(arguments)[f"no_{key.replace('-', '_')}"]:
            explicit[key] = False
    if arguments.num_rounds is not None:
        explicit["num-rounds"] = arguments.num_rounds
    settings = preset_settings(PRESETS[arguments.task], explicit)
    show({"persistence": partial(persistence_figures, settings)})


if __name__ == "__main__":
    main()
