"""Algorithms side by side: the paper's table, from the curves of their runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import fsum
from statistics import fmean, stdev
from typing import Any, Self

from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.readable import some
from flwr_asyncdrop.report.comparable import name_of
from flwr_asyncdrop.report.intervals import Interval, interval
from flwr_asyncdrop.report.runlog import Curve, Point, joules_of
from flwr_asyncdrop.report.series import Series, ground_differs_in
from flwr_asyncdrop.report.target import Target, choose_target

_PREFERRED = "hetero-asyncdrop"


@dataclass(frozen=True)
class Spread:
    """Mean, sample standard deviation (0 of one seed) and number of some seeds."""

    mean: float
    std: float
    count: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Self | None:
        """Return the spread of some values; None if there are none."""
        listed = list(values)
        if not listed:
            return None
        std = stdev(listed) if len(listed) > 1 else 0.0
        return cls(fmean(listed), std, len(listed))


@dataclass(frozen=True)
class Outcome:
    """What one run came to: its best and last value, and when it met the target.

    A run that diverged has no last value.
    """

    best: float
    final: float | None
    arrival: Point | None

    @classmethod
    def of(cls, curve: Curve, target: Target) -> Self:
        """Return what a curve came to."""
        reached = (point for point in curve.points if target.reached_by(point.value))
        final = None if curve.diverged else curve.final.value
        return cls(curve.best.value, final, next(reached, None))

    def json_values(self) -> dict[str, Any]:
        """Return it as JSON values, without an energy that is not counted."""
        values = asdict(self)
        if self.arrival is not None and self.arrival.joules is None:
            del values["arrival"]["joules"]
        return values


@dataclass(frozen=True)
class Row:
    """What one algorithm or variant came to.

    `outcomes` has the complete runs by seed, `incomplete` the seeds of the others, None
    where it is not known, which count nowhere, and `differing` the settings that are
    not the same in all of the complete ones. What follows is beside the reference, seed
    by seed: by how much the last value is larger, and time, bytes and energy to the
    target over its, minus 1, on the seeds with which both reached it; None without any.
    """

    label: str
    algorithm: str
    outcomes: Mapping[int, Outcome]
    incomplete: tuple[int | None, ...]
    differing: tuple[str, ...] = ()
    final_difference: Interval | None = None
    time_overhead: Interval | None = None
    byte_overhead: Interval | None = None
    energy_overhead: Interval | None = None

    @property
    def best(self) -> Spread | None:
        """The best values of the seeds."""
        return Spread.of(outcome.best for outcome in self.outcomes.values())

    @property
    def final(self) -> Spread | None:
        """The last values of the seeds; None if one of them diverged."""
        return None if self.diverged else Spread.of(self.finals.values())

    @property
    def finals(self) -> dict[int, float]:
        """The last value of each seed that did not diverge."""
        outcomes = self.outcomes.items()
        return {seed: o.final for seed, o in outcomes if o.final is not None}

    @property
    def diverged(self) -> list[int]:
        """The seeds whose last evaluation has no finite value."""
        return sorted(self.outcomes.keys() - self.finals.keys())

    @property
    def arrivals(self) -> dict[int, Point]:
        """When each seed reached the target, of those that did."""
        outcomes = self.outcomes.items()
        return {seed: o.arrival for seed, o in outcomes if o.arrival is not None}

    @property
    def seconds(self) -> Spread | None:
        """Seconds on the run's clock to the target, of the seeds that reached it."""
        return Spread.of(point.time for point in self.arrivals.values())

    @property
    def num_bytes(self) -> Spread | None:
        """Bytes both ways to the target, of the seeds that reached it."""
        return Spread.of(point.num_bytes for point in self.arrivals.values())

    @property
    def joules(self) -> Spread | None:
        """Energy to the target, of the seeds that reached it, where all count it."""
        return Spread.of(map(joules_of, self.arrivals.values()))


@dataclass(frozen=True)
class Comparison:
    """The table: a row a label, and the label that overheads are relative to.

    There is no reference if nobody reached the target. `counts_energy` says whether all
    complete runs do, and `differing` what else than algorithms and their settings is
    not the same in all rows.
    """

    target: Target
    reference: str | None
    rows: tuple[Row, ...]
    counts_energy: bool = False
    differing: tuple[str, ...] = ()


def compare(
    series: Sequence[Series],
    target: str | float | Target = "auto",
    reference: str | None = None,
) -> Comparison:
    """Compare algorithms; the parameters and errors are those of `write_report`.

    A `Target` is taken as it is.
    """
    if not any(one.runs for one in series):
        raise DataError(_why_nothing(series))
    goal = target if isinstance(target, Target) else choose_target(series, target)
    rows = []
    for one in series:
        outcomes = {seed: Outcome.of(each, goal) for seed, each in one.curves.items()}
        rows.append(Row(one.label, one.algorithm, outcomes, one.others, one.differing))
    curves = (curve for one in series for curve in one.curves.values())
    counts_energy = all(curve.counts_energy for curve in curves)
    differing = ground_differs_in(series)
    base = _reference(rows, reference)
    if base is None:
        return Comparison(goal, None, tuple(rows), counts_energy, differing)
    compared = [
        replace(
            row,
            final_difference=_difference(row, base),
            time_overhead=_overhead(row, base, lambda point: point.time),
            byte_overhead=_overhead(row, base, lambda point: point.num_bytes),
            energy_overhead=_overhead(row, base, joules_of) if counts_energy else None,
        )
        for row in rows
    ]
    return Comparison(goal, base.label, tuple(compared), counts_energy, differing)


def _why_nothing(series: Sequence[Series]) -> str:
    """Say why there is no run to compare."""
    names = [name_of(one.label, seed) for one in series for seed in one.others]
    logs = [log for one in series for log in one.incomplete.values()]
    unwritten = any(one.unwritten for one in series)
    if names and not unwritten and all(log.complete for log in logs):
        return (
            "no run was ever evaluated, so there is nothing to compare: "
            f"{some(names, 3)} {'has' if len(names) == 1 else 'have'} no finite number "
            "of an evaluation"
        )
    named = f"{some(names, 3)} {'is' if len(names) == 1 else 'are'} incomplete"
    return "no run has come to its end, so there is nothing to compare yet" + (
        f": {named}" if names else ""
    )


def _reference(rows: Sequence[Row], wish: str | None) -> Row | None:
    complete = {row.label: row for row in rows if row.outcomes}
    if wish is not None and wish not in complete:
        there = any(row.label == wish for row in rows)
        why = "has no complete run" if there else "was not run"
        raise ConfigError(
            f"reference={wish!r} {why}: choose one of {', '.join(complete)}"
        )
    if wish is not None or _PREFERRED in complete:
        return complete[wish or _PREFERRED]
    return min((row for row in rows if row.arrivals), key=_lateness, default=None)


def _lateness(row: Row) -> tuple[float, float]:
    """Return what is least for the row of which most seeds arrive, and soonest."""
    share = len(row.arrivals) / len(row.outcomes)
    return -share, fmean(point.time for point in row.arrivals.values())


def _difference(row: Row, base: Row) -> Interval | None:
    both = sorted(row.outcomes.keys() & base.outcomes.keys())
    if not both or row is base or row.diverged or base.diverged:
        return None
    return interval([row.finals[seed] - base.finals[seed] for seed in both], fmean)


def _overhead(row: Row, base: Row, cost: Callable[[Point], float]) -> Interval | None:
    both = sorted(row.arrivals.keys() & base.arrivals.keys())
    costs = [(cost(row.arrivals[seed]), cost(base.arrivals[seed])) for seed in both]
    # Not even one seed may have met it before anything was sent.
    if not costs or not all(needed for _, needed in costs):
        return None
    return interval(costs, _excess)


def _excess(costs: Sequence[tuple[float, float]]) -> float:
    own, needed = map(fsum, zip(*costs, strict=True))
    return own / needed - 1
