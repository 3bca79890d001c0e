"""How many settings a budget tries, and for how long."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from flwr_asyncdrop.cli.question import Question
from flwr_asyncdrop.cli.race import Terms, lanes_of
from flwr_asyncdrop.cli.timing import Timing
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.readable import counted

_ETA = 3
# Rungs, and how short the runs of the last one are: the most thorough first.
_SHAPES = ((2, 1), (2, _ETA), (1, _ETA), (1, _ETA**2))


@dataclass(frozen=True)
class Plan:
    """What a race tries before the runs that are compared.

    Attributes
    ----------
    candidates : int
        Settings of each algorithm, at the most.
    rungs, last : int
        Of `halving.rungs`; no rungs if nothing is searched.
    is_cut : bool
        Whether the budget would not do for a more thorough one.
    """

    candidates: int
    rungs: int
    last: int
    is_cut: bool = False

    def applied(self, terms: Terms) -> Terms:
        """Return terms of a race by this plan."""
        return replace(
            terms,
            search=terms.search if self.rungs else terms.search.fixed(),
            candidates=self.candidates,
            rungs=self.rungs,
            eta=_ETA,
            last=self.last,
        )

    def said(self) -> str:
        """Return how the budget limits the choice of settings; "" if it does not."""
        if not self.is_cut:
            return ""
        if not self.rungs:
            return (
                "the budget has no room for a search, so settings are those of the "
                "task: a larger one searches"
            )
        length = f"runs of 1/{self.last} of the time" if self.last > 1 else "whole runs"
        settings = counted(self.candidates, "setting")
        return (
            f"the budget allowed {settings} of each algorithm at the most, "
            f"chosen by {length}: a larger one searches more"
        )


@dataclass(frozen=True)
class Cost:
    """What a plan takes: processes, and how many whole runs their work comes to."""

    runs: int
    whole: float


Allowance = tuple[Callable[[Cost], bool], str]
"""Whether something is not too much, and what says so."""


def in_runs(budget: int | None) -> Allowance:
    """Return what allows so many whole runs; anything if there is no budget."""
    most = math.inf if budget is None else budget
    return (lambda cost: cost.whole <= most), f"--budget {budget}"


def in_seconds(seconds: float, timing: Timing) -> Allowance:
    """Return what allows so many seconds of cores."""

    def allows(cost: Cost) -> bool:
        return cost.runs * timing.start + cost.whole * timing.whole <= seconds

    return allows, f"the time, with {timing.start + timing.whole:,.0f} s a run,"


def choose_plan(asked: Question, allows: Callable[[Cost], bool], budget: str) -> Plan:
    """Return the first plan that a budget allows; ConfigError if it allows none."""
    for number, plan in enumerate(_plans(asked)):
        if allows(least := cost_of(plan, asked)):
            return replace(plan, is_cut=number > 0)
    raise ConfigError(
        f"{budget} is too little: even without a search there are {least.runs} whole "
        "runs, one for each algorithm and seed: give more, or name fewer --algos"
    )


def _plans(asked: Question) -> Iterator[Plan]:
    """Yield plans from the most thorough one to the one that searches nothing."""
    lanes = lanes_of(asked.algos, asked.terms)
    count = max(len(lane.candidates) for lane in lanes)
    while count > 1:
        yield from (Plan(count, *shape) for shape in _SHAPES)
        count //= 2
    yield Plan(1, 0, 1)


def cost_of(plan: Plan, asked: Question) -> Cost:
    """Return what a race and the runs that are compared take."""
    lanes = lanes_of(asked.algos, plan.applied(asked.terms))
    rungs = [rung for lane in lanes for rung in lane.rungs]
    last = len(lanes) * len(asked.seeds)
    return Cost(
        sum(rung.candidates for rung in rungs) + last,
        sum(rung.candidates / rung.division for rung in rungs) + last,
    )
