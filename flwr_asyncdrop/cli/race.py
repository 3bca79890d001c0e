"""A race of settings for some algorithms, in which all have the same budget."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.app.run_folder import RunFolder
from flwr_asyncdrop.cli.halving import (
    Result,
    Rung,
    at_edge,
    best,
    candidates,
    rungs,
)
from flwr_asyncdrop.cli.presets import Preset
from flwr_asyncdrop.cli.runs import RunSpec, all_runs, is_complete
from flwr_asyncdrop.cli.variants import meaningful, preset_settings, variant_of
from flwr_asyncdrop.exceptions import ConfigError, RunError


@dataclass(frozen=True)
class Terms:
    """What is the same for all algorithms of a race.

    Attributes
    ----------
    preset : Preset
        The task.
    explicit : mapping
        Keys that override it.
    search : mapping
        Keys, each with the values to try.
    candidates : int
        How many combinations of these an algorithm has at the most.
    rungs, eta : int
        Of `rungs`.
    seeds : sequence of int
        Of every candidate's runs.
    devices : int
        The size of the fleet.
    """

    preset: Preset
    explicit: Mapping[str, Value]
    search: Mapping[str, Sequence[Value]]
    candidates: int
    rungs: int
    eta: int
    seeds: Sequence[int]
    devices: int


class Lane:
    """One algorithm's part of a race.

    `known` are the keys that mean something to it; it does without the others.
    """

    def __init__(self, name: str, known: frozenset[str], terms: Terms) -> None:
        self.label = algorithm(name).label()
        self.search = {k: v for k, v in terms.search.items() if k in known}
        self.results: list[list[Result]] = []
        self._name = name
        self._terms = terms
        self._own = {k: v for k, v in terms.explicit.items() if k in known}
        self._candidates = candidates(self.search, terms.candidates)
        self._left = self._candidates

    @cached_property
    def rungs(self) -> list[Rung]:
        """Its rungs; they differ from another's if it has fewer candidates."""
        whole = RunConfig.parse(self.settings({})).num_rounds
        terms = self._terms
        return rungs(whole, len(self._candidates), terms.eta, terms.rungs)

    def settings(self, more: Mapping[str, Value]) -> dict[str, Value]:
        """Return the run-config of a candidate."""
        own = {**self._own, **more, "algo": self._name}
        return preset_settings(self._terms.preset, own)

    def runs(self, out: Path) -> list[list[RunSpec]]:
        """Return the runs of the next rung: for each candidate, one a seed."""
        place = len(self.results)
        length = {"num-rounds": self.rungs[place].num_rounds}
        return [
            all_runs(
                [variant_of(self._name, self.settings({**each, **length}), each)],
                self._terms.seeds,
                self._terms.devices,
                out / f"rung-{place + 1}",
            )
            for each in self._left
        ]

    def settle(self, runs: Sequence[Sequence[RunSpec]]) -> None:
        """Note how the runs ended, and who goes on; RunError if nobody does."""
        found = [
            Result(each, tuple(map(_final, own)))
            for each, own in zip(self._left, runs, strict=True)
        ]
        self.results.append(found)
        place = min(len(self.results), self._terms.rungs - 1)
        ahead = [each.values for each in best(found, self.rungs[place].candidates)]
        if not ahead:
            raise RunError(
                f"every candidate of {self.label} has failed: search other values"
            )
        # As in the grid: of equals the first one wins.
        self._left = [each for each in self._candidates if each in ahead]

    @property
    def winner(self) -> Result:
        """The best of the last rung."""
        return best(self.results[-1], 1)[0]

    def said(self) -> list[str]:
        """Return lines for people: what was chosen, and what limits that."""
        chosen, tried = self.winner, len(self._candidates)
        settings = ", ".join(f"{key}={value}" for key, value in chosen.values.items())
        lines = [f"{self.label}: {settings or 'nothing to search'} ({tried} tried)"]
        if failed := sum(None in each.finals for rung in self.results for each in rung):
            lines.append(f"  {failed} of them are out, as runs of them failed")
        if edges := at_edge(chosen.values, self.search):
            lines.append(
                f"  {', '.join(edges)}: at the edge of what was searched, a better "
                "value may lie beyond"
            )
        return lines

    def report(self) -> dict[str, Any]:
        """Return all that decided the choice."""
        ran = zip(self.rungs, self.results, strict=True)
        return {
            "search": self.search,
            "rungs": [
                {"num-rounds": rung.num_rounds, "candidates": [vars(r) for r in found]}
                for rung, found in ran
            ],
        }


def race(
    names: Sequence[str],
    terms: Terms,
    out: Path,
    do: Callable[[int, Sequence[RunSpec]], object],
) -> list[Lane]:
    """Race the candidates of all algorithms, rung by rung.

    `do` does those of some runs that are missing, given the number of their rung.
    ConfigError if a key means nothing to any algorithm, RunError if all runs of one
    have failed.
    """
    lanes = lanes_of(names, terms)
    for number in range(1, terms.rungs + 1):
        runs = [lane.runs(out) for lane in lanes]
        do(number, [run for lane in runs for own in lane for run in own])
        for lane, own in zip(lanes, runs, strict=True):
            lane.settle(own)
    return lanes


def lanes_of(names: Sequence[str], terms: Terms) -> list[Lane]:
    """Return the algorithms of a race, before it has begun."""
    names = list(dict.fromkeys(names))
    if both := sorted(terms.search.keys() & terms.explicit.keys()):
        raise ConfigError(f"{both[0]} is searched: leave --{both[0]} out")
    known = meaningful(names, (*terms.explicit, *terms.search))
    return [Lane(name, known[name], terms) for name in names]


def _final(run: RunSpec) -> float | None:
    """Return how a run ended, the larger the better; None if it failed."""
    log = RunFolder(run.folder).log if is_complete(run) else None
    if log is None or log.curve is None:
        return None
    return log.curve.metric.goodness(log.curve.final.value)
