"""A race of settings for some algorithms, in which all have the same budget."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

from flwr_asyncdrop.algorithms import algorithm
from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.cli.halving import (
    Result,
    Rung,
    Values,
    at_edge,
    best,
    candidates,
    rungs,
    tied,
)
from flwr_asyncdrop.cli.presets import Preset
from flwr_asyncdrop.cli.runs import RunSpec, all_runs, curve_of
from flwr_asyncdrop.cli.searched import Search
from flwr_asyncdrop.cli.variants import (
    Variant,
    meaningful,
    preset_settings,
    value_text,
    variant_of,
)
from flwr_asyncdrop.exceptions import ConfigError, RunError


class Measure(Protocol):
    """How long the runs of a race are, and how good they were.

    `fixed` are keys that runs of every length have.
    """

    fixed: Mapping[str, Value]

    def length(self, config: RunConfig, division: int) -> dict[str, Value]:
        """Return the keys that make a run one `division`-th as long as a whole one."""

    def folder(self, number: int, division: int) -> str:
        """Return the name of the folder of rung `number`, from 1."""

    def scores(self, runs: Sequence[RunSpec]) -> list[float | None]:
        """Return how good all runs of a rung were, the larger the better.

        None for one that failed.
        """


class FinalMetric:
    """As long as so many rounds, and as good as the last value of the metric."""

    fixed: Mapping[str, Value] = MappingProxyType({})

    def length(self, config: RunConfig, division: int) -> dict[str, Value]:
        """Return the rounds, rounded up."""
        return {"num-rounds": math.ceil(config.num_rounds / division)}

    def folder(self, number: int, division: int) -> str:
        """Return the name of a rung's folder."""
        return f"rung-{number}"

    def scores(self, runs: Sequence[RunSpec]) -> list[float | None]:
        """Return the last values."""
        return [
            None
            if curve is None or curve.diverged
            else curve.metric.goodness(curve.final.value)
            for curve in map(curve_of, runs)
        ]


FINAL_METRIC = FinalMetric()


@dataclass(frozen=True)
class Terms:
    """What is the same for all algorithms of a race.

    Attributes
    ----------
    preset : Preset
        The task.
    explicit : mapping
        Keys that override it.
    search : Search
        The values to try.
    candidates : int
        How many combinations of these an algorithm has at the most.
    rungs, eta : int
        Of `rungs`.
    seeds : sequence of int
        Of every candidate's runs.
    devices : int
        The size of the fleet.
    measure : Measure
        How long runs are, and how good they were.
    last : int
        Of `rungs`.
    tie : float
        Candidates of the last rung that are within so much of the best one are as good
        as it. The best of them over the whole time of its runs wins. 0 for no ties.
    """

    preset: Preset
    explicit: Mapping[str, Value]
    search: Search
    candidates: int
    rungs: int
    eta: int
    seeds: Sequence[int]
    devices: int
    measure: Measure = FINAL_METRIC
    last: int = 1
    tie: float = 0.0


class Lane:
    """One algorithm's part of a race.

    `known` are the keys that mean something to it; it does without the others. `own`
    are those that were given, `search` those that are searched.
    """

    def __init__(self, name: str, known: frozenset[str], terms: Terms) -> None:
        self.label = algorithm(name).label()
        shared = {k: v for k, v in terms.search.shared.items() if k in known}
        self.search = {**shared, **terms.search.own.get(self.label, {})}
        self.results: list[list[Result]] = []
        self._name = name
        self._terms = terms
        self.own = {k: v for k, v in terms.explicit.items() if k in known}
        self._candidates = candidates(self.search, terms.candidates)
        self._left = self._candidates

    @cached_property
    def rungs(self) -> list[Rung]:
        """Its rungs; they differ from another's if it has fewer candidates."""
        terms = self._terms
        return rungs(len(self._candidates), terms.eta, terms.rungs, terms.last)

    def settings(self, more: Mapping[str, Value]) -> dict[str, Value]:
        """Return the run-config of a candidate."""
        own = {**self.own, **more, "algo": self._name}
        return preset_settings(self._terms.preset, own)

    def length(
        self, values: Mapping[str, Value], division: int = 1
    ) -> dict[str, Value]:
        """Return the keys that make a candidate's run a `division`-th of a whole one.

        How long that is may follow from its values, as in a task of so many epochs.
        """
        measure = self._terms.measure
        config = RunConfig.parse(self.settings({**values, **measure.fixed}))
        return measure.length(config, division)

    def variant(self, values: Mapping[str, Value], division: int = 1) -> Variant:
        """Return a candidate with runs of a length."""
        settings = self.settings({**values, **self.length(values, division)})
        return variant_of(self._name, settings, values)

    def runs(self, out: Path) -> list[list[RunSpec]]:
        """Return the runs of the next rung: for each candidate, one a seed."""
        number, terms = len(self.results) + 1, self._terms
        division = self.rungs[number - 1].division
        folder = out / terms.measure.folder(number, division)
        return [
            all_runs([self.variant(each, division)], terms.seeds, terms.devices, folder)
            for each in self._left
        ]

    def settle(self, scores: Sequence[Sequence[float | None]]) -> None:
        """Note how good the runs were, and who goes on; RunError if nobody does.

        There is one of `scores` for each candidate that is left and each seed.
        """
        found = [
            Result(each, tuple(own))
            for each, own in zip(self._left, scores, strict=True)
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

    def break_ties(self, runs: Sequence[Sequence[RunSpec]]) -> None:
        """Look at all of the runs of those that ended the last rung as the best did.

        There is a sequence of `runs` for each candidate of that rung.
        """
        found = self.results[-1]
        equals = tied(found, self._terms.tie)
        if sum(equals) > 1:
            self.results[-1] = [
                replace(each, means=_means(own)) if equal else each
                for each, own, equal in zip(found, runs, equals, strict=True)
            ]

    @property
    def candidates(self) -> list[Values]:
        """All that it began with."""
        return list(self._candidates)

    @property
    def winner(self) -> Result:
        """The best of the last rung; the first candidate if there was none."""
        if not self.results:
            return Result(self._candidates[0], ())
        return best(self.results[-1], 1)[0]

    @property
    def failed(self) -> int:
        """How many candidates are out, as runs of them failed or diverged."""
        return sum(None in each.finals for rung in self.results for each in rung)

    @property
    def is_by_chance(self) -> bool:
        """Whether all candidates of a rung were equally good, and not all went on.

        The first ones did. So it is if the runs end before a device has done a task.
        """
        return any(
            len(rung) > len(ahead)
            and len({(each.score, each.mean) for each in rung}) == 1
            for rung, ahead in pairwise([*self.results, [self.winner]])
        )

    def said(self) -> list[str]:
        """Return lines for people: what was chosen, and what limits that."""
        chosen, tried = self.winner, len(self._candidates)
        settings = ", ".join(
            f"{key}={value_text(value)}" for key, value in chosen.values.items()
        )
        lines = [f"{self.label}: {settings or 'nothing to search'} ({tried} tried)"]
        if self.failed:
            lines.append(
                f"  out, as runs of them failed or diverged: {self.failed} of them"
            )
        if self.is_by_chance:
            lines.append(
                "  all were equally good in a rung, so the first went on: longer runs "
                "may tell them apart"
            )
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
            "rungs": [self._reported(rung.division, found) for rung, found in ran],
        }

    def _reported(self, division: int, results: Sequence[Result]) -> dict[str, Any]:
        """Return a rung for a file: the length once if it is that of all."""
        lengths = [self.length(each.values, division) for each in results]
        plain = [_plain(each) for each in results]
        if all(each == lengths[0] for each in lengths):
            return {**lengths[0], "candidates": plain}
        pairs = zip(lengths, plain, strict=True)
        return {"candidates": [{**length, **each} for length, each in pairs]}


def race(
    names: Sequence[str],
    terms: Terms,
    out: Path,
    do: Callable[[int, Sequence[RunSpec]], object],
    lose: Callable[[Lane, RunError], object] | None = None,
) -> list[Lane]:
    """Race the candidates of all algorithms, rung by rung.

    `do` does those of some runs that are missing, given the number of their rung.
    ConfigError if a key means nothing to any algorithm. RunError if all runs of one
    have failed or diverged; with `lose`, which is given it then, the others go on
    without it, and the RunError is that of the last one.
    """
    lanes = lanes_of(names, terms)
    for number in range(1, terms.rungs + 1):
        runs = {lane: lane.runs(out) for lane in lanes}
        listed = [run for lane in lanes for own in runs[lane] for run in own]
        do(number, listed)
        found = zip(listed, terms.measure.scores(listed), strict=True)
        scores = {run.folder: score for run, score in found}
        for lane, own in runs.items():
            try:
                lane.settle([[scores[run.folder] for run in each] for each in own])
                if terms.tie and number == terms.rungs:
                    lane.break_ties(own)
            except RunError as error:
                if lose is None or len(lanes) == 1:
                    raise
                lanes.remove(lane)
                lose(lane, error)
    return lanes


def lanes_of(names: Sequence[str], terms: Terms) -> list[Lane]:
    """Return the algorithms of a race, before it has begun."""
    names = list(dict.fromkeys(names))
    terms.search.check(names, terms.explicit)
    known = meaningful(names, (*terms.explicit, *terms.search.shared))
    lanes = [Lane(name, known[name], terms) for name in names]
    labels = [lane.label for lane in lanes]
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise ConfigError(f"two algorithms are called {twice[0]}: rename a class")
    return lanes


def _plain(result: Result) -> dict[str, Any]:
    """Return what a file keeps of a result."""
    means = {"means": result.means} if result.means else {}
    return {"values": result.values, "finals": result.finals, **means}


def _means(runs: Sequence[RunSpec]) -> tuple[float, ...]:
    """Return how good runs that have ended were on average, the larger the better."""
    curves = filter(None, map(curve_of, runs))
    return tuple(curve.metric.goodness(curve.mean) for curve in curves)
