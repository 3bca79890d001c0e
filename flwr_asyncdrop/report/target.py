"""The value of the metric to which time and bytes are counted."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.report.runlog import Curve, Metric
from flwr_asyncdrop.report.series import Series

# The algorithms that are compared with the baselines, and the synchronous control,
# which is no baseline either.
OURS: Final = frozenset(
    {"asyncdrop", "hetero-asyncdrop", "layerwise-asyncdrop", "asyncdrop-plus"}
)
CONTROL: Final = "fedavg"

_BEST = "best"
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
    """
    metric = next(curve.metric for one in series for curve in one.curves.values())
    complete = [each for each in series if each.runs]
    ours = OURS | {CONTROL}
    baselines = [each for each in complete if each.algorithm not in ours and not of_all]
    whose = "baseline" if baselines else "algorithm"
    compared = baselines or complete

    def ranked(
        runs: Sequence[Series], value: Callable[[Curve], float]
    ) -> list[tuple[float, str, float]]:
        means = [(one.label, fmean(map(value, one.curves.values()))) for one in runs]
        return sorted((metric.goodness(mean), label, mean) for label, mean in means)

    if wish == "auto":
        bests = ranked(compared, lambda curve: curve.best.value)
        _, label, value = bests[min(1, len(bests) - 1)]
        worst, best = _EXTREMES[metric.extreme]
        which = f"second-{worst}" if len(bests) > 1 else "only"
        return Target(metric, value, f"the {which} {best} of the {whose}s, {label}'s")
    number = read_target(wish, metric)
    if not str(wish).endswith(_BEST):
        return Target(metric, number, "given")
    sane = [
        one
        for one in compared
        if not any(curve.diverged for curve in one.curves.values())
    ]
    if not sane:
        raise DataError(
            f"target={wish!r} needs a {whose} that did not diverge: name an "
            f"{metric.title} instead"
        )
    _, label, final = ranked(sane, lambda curve: curve.final.value)[-1]
    value = final / number if metric.falls else number * final
    rule = f"{number:g} of the best {whose}'s final {metric.title}, {label}'s"
    return Target(metric, value, rule)


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
    values = f"an {metric.title} in (0, 1]" if metric.is_share else f"a {metric.title}"
    raise ConfigError(
        f"target={wish!r} must be 'auto', {values} such as 0.6, or a share of the best "
        f"baseline's final {metric.title} such as '0.95best'"
    )
