"""How several changes become one, by name."""

from collections.abc import Callable, Sequence
from functools import partial

from flwr_asyncdrop.aggregation.changes import Change, Mean, Normaliser
from flwr_asyncdrop.aggregation.robust import trimmed_change
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.parameters import in_interval
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.submodel import State

Combiner = Callable[[State, Sequence[Change]], State]
"""From the global model and some changes to one change of the full model's shapes.

An object that remembers something is saved as a `Weighting` is.
"""

COMBINATIONS = ("mean", "trimmed-mean", "median")
"""The names that `combiner` knows."""

# Of two, neither is the outlier.
_FEWEST = 3
_MEDIAN = 0.5


def combiner(
    name: str, count: int, *, trim: float = 0.2, normaliser: Normaliser = "size"
) -> Combiner:
    """Return the combination of that name for `count` changes.

    ``"trimmed-mean"`` cuts a share `trim`, in [0, 1/2), off at each end. ``"mean"``
    divides by the `normaliser`; see `mean_change`. The robust ones need at least three
    changes.
    """
    if name not in COMBINATIONS:
        raise ConfigError(
            f"combine={name!r} is not known: choose one of {', '.join(COMBINATIONS)}"
        )
    in_interval("[0, 0.5)").check("trim", trim)
    if name == "mean":
        return Mean(normaliser)
    if count < _FEWEST:
        raise ConfigError(
            f"combine={name!r} cannot tell the outlier among "
            f"{counted(count, 'update')}: collect "
            f"at least {_FEWEST} (buffer_size, or more devices in flight)"
        )
    return partial(trimmed_change, trim=_MEDIAN if name == "median" else trim)
