"""The accuracy to which time and bytes are counted."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Final

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.report.series import Series

OURS: Final = frozenset(
    {"asyncdrop", "hetero-asyncdrop", "layerwise-asyncdrop", "asyncdrop-plus"}
)
"""The algorithms that are compared with the baselines."""

CONTROL: Final = "fedavg"
"""The synchronous control, which is no baseline either."""

_BEST = "best"


@dataclass(frozen=True)
class Target:
    """An accuracy to reach.

    Attributes
    ----------
    accuracy : float
        The accuracy.
    rule : str
        Where it comes from.
    """

    accuracy: float
    rule: str


def choose_target(series: Sequence[Series], wish: str | float = "auto") -> Target:
    """Return the target that a comparison goes by.

    Parameters
    ----------
    series : sequence of Series
        What is compared; at least one has a complete run.
    wish : str or float
        An accuracy; or ``"auto"``, the paper's rule: the second-lowest of the
        baselines' maximum accuracies (means over seeds); or a factor and ``"best"``,
        e.g. ``"0.95best"``: so much of the highest final accuracy of a baseline.
        Where no baseline was run, all algorithms stand in for them.

    Raises
    ------
    ConfigError
        If `wish` is none of these.
    """
    complete = [each for each in series if each.runs]
    baselines = [each for each in complete if each.algorithm not in OURS | {CONTROL}]
    whose = "baseline" if baselines else "algorithm"
    compared = baselines or complete
    if wish == "auto":
        maxima = sorted((_mean_best(s), s.label) for s in compared)
        accuracy, label = maxima[min(1, len(maxima) - 1)]
        which = "second-lowest" if len(maxima) > 1 else "only"
        return Target(accuracy, f"the {which} maximum of the {whose}s, {label}'s")
    text = str(wish)
    try:
        number = float(text.removesuffix(_BEST))
    except ValueError:
        number = -1.0
    if not 0 < number <= 1:
        raise ConfigError(
            f"target={wish!r} must be 'auto', an accuracy in (0, 1] such as 0.6, or a "
            "share of the best baseline's final accuracy such as '0.95best'"
        )
    if not text.endswith(_BEST):
        return Target(number, "given")
    final, label = max((_mean_final(s), s.label) for s in compared)
    return Target(
        number * final, f"{number:g} of the best {whose}'s final accuracy, {label}'s"
    )


def _mean_best(series: Series) -> float:
    return fmean(curve.best.value for curve in series.curves.values())


def _mean_final(series: Series) -> float:
    return fmean(curve.final.value for curve in series.curves.values())
