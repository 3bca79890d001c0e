"""The value of the metric to which time and bytes are counted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.readable import with_article
from flwr_asyncdrop.report.metric import Metric
from flwr_asyncdrop.report.runlog import Curve
from flwr_asyncdrop.report.series import Series

# The algorithms that are compared with the baselines, and the synchronous control,
# which is no baseline either.
OURS: Final = frozenset(
    {"asyncdrop", "hetero-asyncdrop", "layerwise-asyncdrop", "asyncdrop-plus"}
)
CONTROL: Final = "fedavg"

_BEST = "best"
# Of two baselines the second-lowest is the better one: hardly anybody else gets there.
_FEWEST = 3
_SHARE = 0.95
_EXTREMES = {"max": ("lowest", "maximum"), "min": ("highest", "minimum")}


@dataclass(frozen=True)
class Target:
    """A value of the metric to reach, and the rule that it comes from."""

    metric: Metric
    value: float
    rule: str

    def reached_by(self, value: float) -> bool:
        """Return whether a value is as good or better."""
        return self.metric.goodness(value) >= self.metric.goodness(self.value)


def choose_target(
    series: Sequence[Series], wish: str | float = "auto", *, of_all: bool = False
) -> Target:
    """Return the target of a comparison in which at least one run is complete.

    `wish` is the `target` of `write_report`. Values of a baseline are means over its
    seeds; if no baseline was run, or `of_all` is set, all algorithms count as one.
    DataError: a share is asked for, and no baseline has a positive final value.
    """
    complete = [each for each in series if each.runs]
    ours = OURS | {CONTROL}
    baselines = [each for each in complete if each.algorithm not in ours and not of_all]
    whose = "baseline" if baselines else "algorithm"
    compared = baselines or complete
    metric = _metric(complete)
    if wish == "auto":
        share = None if len(compared) >= _FEWEST else _of_best(compared, whose, _SHARE)
        return replace(share or _second_lowest(compared, whose), metric=metric)
    number = read_target(wish, metric)
    if not str(wish).endswith(_BEST):
        return Target(metric, number, "given")
    target = _of_best(compared, whose, number)
    if target is None:
        raise DataError(
            f"target={wish!r} is a share of the best {whose}'s final {metric.title}, "
            "and there is no positive one with every seed: name a value instead"
        )
    return replace(target, metric=metric)


def _second_lowest(compared: Sequence[Series], whose: str) -> Target:
    """Return the paper's target; of a single one it is its best value."""
    ranking = _ranking(compared, lambda curve: curve.best.value)
    label, value = ranking[:2][-1]
    metric = _metric(compared)
    worst, best = _EXTREMES[metric.extreme]
    which = f"second-{worst}" if len(ranking) > 1 else "only"
    return Target(metric, value, f"the {which} {best} of the {whose}s, {label}'s")


def _of_best(compared: Sequence[Series], whose: str, share: float) -> Target | None:
    """Return a share of the best final value; None if there is none to share."""
    ended = [
        one
        for one in compared
        if not any(curve.diverged for curve in one.curves.values())
    ]
    if not ended:
        return None
    label, final = _ranking(ended, lambda curve: curve.final.value)[-1]
    if final <= 0:
        return None
    metric = _metric(compared)
    best = f"the best {whose}'s final {metric.title}"
    if metric.falls:
        return Target(metric, final / share, f"{best} over {share:g}, {label}'s")
    return Target(metric, share * final, f"{share:g} of {best}, {label}'s")


def _ranking(
    compared: Sequence[Series], value: Callable[[Curve], float]
) -> list[tuple[str, float]]:
    """Return labels and mean values, the worst first."""
    metric = _metric(compared)
    means = [(one.label, fmean(map(value, one.curves.values()))) for one in compared]
    return sorted(means, key=lambda each: (metric.goodness(each[1]), each[0]))


def _metric(series: Sequence[Series]) -> Metric:
    """Return the metric of all, in per cent if any of them says so."""
    found = [curve.metric for one in series for curve in one.curves.values()]
    return max(found, key=lambda metric: metric.above_one)


def read_target(wish: str | float, metric: Metric) -> float:
    """Return the number in a wish other than ``"auto"``; ConfigError if it has none."""
    text = str(wish)
    share = metric.is_share or text.endswith(_BEST)
    try:
        number = float(text.removesuffix(_BEST))
    except ValueError:
        number = math.nan
    if 0 < number <= 1 if share else math.isfinite(number):
        return number
    values = f"{with_article(metric.title)}{' in (0, 1]' if metric.is_share else ''}"
    raise ConfigError(
        f"target={wish!r} must be 'auto', {values} such as 0.6, or a share of the best "
        f"baseline's final {metric.title} such as '0.95best'"
    )
