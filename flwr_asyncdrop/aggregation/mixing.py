"""Mixing: the global model moves a fixed share of the way to each update."""

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.functions import load_into, state_of
from flwr_asyncdrop.aggregation.weighting import Weighting, constant, weight_of
from flwr_asyncdrop.parameters import in_interval
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.submodel import Indices, State, merge_

_RATES = in_interval("[0, 1]")


def mix_(state: State, update: State, indices: Indices, alpha: float) -> None:
    """Mix an update into the global model, in place.

    Algorithm 2 of Dun et al. (2023): coordinates that the mask ``M`` drops keep their
    values, ``W <- W * (1 - M) + ((1 - alpha) W + alpha W_i) * M``. Without a mask it is
    Algorithm 1, ``W <- (1 - alpha) W + alpha W_i``.

    Parameters
    ----------
    state : dict of str to Tensor
        The global model ``W``; unchanged if the update raises a ShapeError.
    update : dict of str to Tensor
        The local result ``W_i``, of the submodel's shapes.
    indices : dict of str to dict of int to Tensor
        The mask: tensor name -> dim -> kept positions; empty if all is kept.
    alpha : float
        The mixing rate, in [0, 1].
    """
    _RATES.check("alpha", alpha)
    merge_(state, update, indices, alpha)


class Mixing(Aggregator):
    """Mix every update in as it arrives (Algorithms 1 and 2 of Dun et al., 2023).

    With a weighting it is FedAsync (Xie et al., 2019): the update's mixing rate is
    ``alpha * s``, times its discount if it is late.

    Parameters
    ----------
    alpha : float
        The mixing rate, in [0, 1].
    weighting : callable
        ``s``, from an update to its weight in [0, 1]; 1 by default.
    """

    def __init__(self, alpha: float = 0.5, weighting: Weighting = constant) -> None:
        self._alpha: float = _RATES.check("alpha", alpha)
        self._weighting = weighting

    def merge(self, state: State, update: Update) -> bool:
        """Mix the update in; the global model changes every time."""
        mix_(state, update.arrays, update.indices, self._rate_of(update))
        return True

    def _rate_of(self, update: Update) -> float:
        """Return the mixing rate of an update; ConfigError unless it is in [0, 1]."""
        rate = self._alpha * weight_of(update, self._weighting)
        _RATES.check("alpha", rate)
        return rate

    def state_dict(self) -> StateDict:
        """Return what the weighting remembers."""
        return state_of(weighting=self._weighting)

    def load_state_dict(self, state: StateDict) -> None:
        """Restore it."""
        load_into(state, weighting=self._weighting)
