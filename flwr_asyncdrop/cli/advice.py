"""Which of some candidates suits a fleet, as far as their seeds can tell."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from flwr_asyncdrop.app.config import RunConfig, Value
from flwr_asyncdrop.report.comparison import Comparison, Row, compare
from flwr_asyncdrop.report.intervals import FEWEST, Interval, interval
from flwr_asyncdrop.report.series import Series
from flwr_asyncdrop.report.target import Target

KINDS = (
    "synchronous",
    "devices wait for each other",
    "asynchronous",
    "asynchronous with submodels",
)
"""From simple to less simple: how much an algorithm asks of server and model."""


@dataclass(frozen=True)
class Candidate:
    """What an algorithm has run with at the end: its settings and its runs."""

    algorithm: str
    values: Mapping[str, Value]
    config: RunConfig
    series: Series

    @property
    def simplicity(self) -> int:
        """Its place in `KINDS`."""
        if self.config.algorithm.checked_masks() is not None:
            return 3
        devices = (log.devices for log in self.series.runs.values())
        slots = min(self.config.in_flight, *devices)
        waits_for = self.config.algorithm.clipped_aggregator(slots).waits_for
        return 0 if waits_for >= slots else 2 if waits_for == 1 else 1


@dataclass(frozen=True)
class Standing:
    """A candidate beside the best one.

    `loss` is by how much it is worse: in seconds to the target, where a run that did
    not reach it counts with its whole time, or, if nobody reached it, in the final
    metric, where one that diverged counts as the worst of the others. It is None for
    the best one itself.
    """

    candidate: Candidate
    row: Row
    loss: Interval | None

    @property
    def is_clearly_worse(self) -> bool:
        """Whether the paired interval says so."""
        return self.loss is not None and self.loss.is_clear and self.loss.value > 0


@dataclass(frozen=True)
class Advice:
    """What is recommended, and how the others stand beside the best one.

    `standings` are best first. The best one has the least mean; `recommended` is the
    simplest of those that are not clearly worse.
    """

    target: Target
    seconds: float
    reached: bool
    standings: tuple[Standing, ...]
    recommended: Standing
    num_seeds: int

    @property
    def best(self) -> Standing:
        """The one with the best mean."""
        return self.standings[0]

    @property
    def has_intervals(self) -> bool:
        """Whether there are seeds enough to call a difference clear."""
        return self.num_seeds >= FEWEST


def advise(candidates: Sequence[Candidate], target: Target, seconds: float) -> Advice:
    """Compare candidates that all have complete runs with the same seeds.

    `seconds` are those of a run. Where there are too few seeds for intervals, the best
    mean is recommended.
    """
    comparison: Comparison = compare([each.series for each in candidates], target)
    rows = dict(
        zip((each.algorithm for each in candidates), comparison.rows, strict=True)
    )
    reached = any(row.arrivals for row in rows.values())
    worst = max(
        (-target.metric.goodness(v) for r in rows.values() for v in r.finals.values()),
        default=0.0,
    )

    def losses(row: Row) -> dict[int, float]:
        if reached:
            return {
                seed: min(outcome.arrival.time, seconds) if outcome.arrival else seconds
                for seed, outcome in row.outcomes.items()
            }
        goodness = target.metric.goodness
        ends = {seed: -goodness(value) for seed, value in row.finals.items()}
        return {seed: ends.get(seed, worst) for seed in row.outcomes}

    found = {name: losses(row) for name, row in rows.items()}
    ordered = sorted(
        candidates,
        key=lambda each: (fmean(found[each.algorithm].values()), each.simplicity),
    )
    best = found[ordered[0].algorithm]
    standings = [
        Standing(
            each,
            rows[each.algorithm],
            None if each is ordered[0] else _paired(found[each.algorithm], best),
        )
        for each in ordered
    ]
    num_seeds = len(best)
    as_good = [each for each in standings if not each.is_clearly_worse]
    chosen = min(as_good, key=lambda each: each.candidate.simplicity)
    recommended = chosen if num_seeds >= FEWEST else standings[0]
    return Advice(target, seconds, reached, tuple(standings), recommended, num_seeds)


def _paired(own: Mapping[int, float], best: Mapping[int, float]) -> Interval:
    return interval([own[seed] - best[seed] for seed in sorted(best)], fmean)


def json_values(advice: Advice) -> dict[str, Any]:
    """Return all of it as JSON values, seed by seed."""
    metric = advice.target.metric
    return {
        "target": {metric.key: advice.target.value, "rule": advice.target.rule},
        "max-seconds": advice.seconds,
        "compared-by": "seconds to the target" if advice.reached else metric.name,
        "seeds": advice.num_seeds,
        "recommended": advice.recommended.candidate.algorithm,
        "best-mean": advice.best.candidate.algorithm,
        "candidates": [_standing(each, advice) for each in advice.standings],
    }


def _standing(each: Standing, advice: Advice) -> dict[str, Any]:
    row, metric = each.row, advice.target.metric
    return {
        "algorithm": each.candidate.algorithm,
        "settings": dict(each.candidate.values),
        "kind": KINDS[each.candidate.simplicity],
        "reached": len(row.arrivals),
        "seconds": None if row.seconds is None else asdict(row.seconds),
        "bytes": None if row.num_bytes is None else asdict(row.num_bytes),
        f"final_{metric.key}": None if row.final is None else asdict(row.final),
        "worse-by": None if each.loss is None else asdict(each.loss),
        "clearly-worse": each.is_clearly_worse,
        "by-seed": {str(seed): o.json_values() for seed, o in row.outcomes.items()},
    }
