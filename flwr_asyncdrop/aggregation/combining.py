"""From several changes to the one that the server makes, by name."""

from collections.abc import Callable, Sequence
from functools import partial

from flwr_asyncdrop.aggregation.changes import Change, Normaliser, mean_change
from flwr_asyncdrop.aggregation.robust import trimmed_change
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import State

Combiner = Callable[[State, Sequence[Change]], State]
"""From the global model and some changes to one change of the full model's shapes."""

COMBINATIONS = ("mean", "trimmed-mean", "median")
"""The names that `combiner` knows."""

# With two there is nobody to say which of them is the outlier.
_FEWEST = 3
_MEDIAN = 0.5


def combiner(
    name: str, count: int, *, trim: float = 0.2, normaliser: Normaliser = "size"
) -> Combiner:
    """Look a combination up.

    Parameters
    ----------
    name : str
        One of `COMBINATIONS`.
    count : int
        Changes that will be combined.
    trim : float
        Share that ``"trimmed-mean"`` cuts off at each end, in [0, 1/2).
    normaliser : {"size", "examples", "counts"}
        What ``"mean"`` divides by; see `mean_change`.

    Raises
    ------
    ConfigError
        If there is none of that name, `trim` is out of range, or an outlier among so
        few changes cannot be told.
    """
    if name not in COMBINATIONS:
        raise ConfigError(
            f"combine={name!r} is not known: choose one of {', '.join(COMBINATIONS)}"
        )
    if not 0 <= trim < _MEDIAN:
        raise ConfigError(f"trim={trim!r} must lie in [0, 0.5)")
    if name == "mean":
        return partial(mean_change, normaliser=normaliser)
    if count < _FEWEST:
        raise ConfigError(
            f"combine={name!r} cannot tell the outlier among {count} updates: collect "
            f"at least {_FEWEST} (buffer_size, or more devices in flight)"
        )
    return partial(trimmed_change, trim=_MEDIAN if name == "median" else trim)
