"""Buffered aggregation: the server steps once every K updates."""

from dataclasses import dataclass, field
from typing import ClassVar

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.changes import Change, change_of, mean_change
from flwr_asyncdrop.aggregation.combining import Combiner
from flwr_asyncdrop.aggregation.server_step import ServerStep
from flwr_asyncdrop.aggregation.weighting import Weighting, constant
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import State, check_fits


@dataclass
class Collected:
    """What `Buffered` keeps between updates.

    Attributes
    ----------
    changes : list of Change
        Those that wait for the next step.
    velocity : dict of str to Tensor
        Of the `ServerStep`.
    """

    changes: list[Change] = field(default_factory=list)
    velocity: State = field(default_factory=dict)


class Buffered(Aggregator):
    """Collect K updates, then take one step with their mean change.

    FedBuff (Nguyen et al., 2022): ``W <- W + lr * 1/K sum_i s(tau_i) Delta_i`` with
    ``Delta_i = W_i - W_dispatched``, the change against the weights that the device
    was sent. With ``K`` the whole cohort, weights by examples and devices that wait,
    it is synchronous FedAvg.

    Parameters
    ----------
    size : int
        ``K``, at least 1.
    weighting : callable
        ``s``, from an update to its weight.
    combine : callable
        Makes one change of the K: FedBuff's mean by default, or see `combiner`.
    server_lr, momentum : float
        Of the `ServerStep`.
    waits : bool
        Whether devices wait for the step that their updates are part of.

    Raises
    ------
    ConfigError
        If a value is out of range.
    """

    needs_base: ClassVar[bool] = True

    def __init__(
        self,
        size: int,
        *,
        weighting: Weighting = constant,
        combine: Combiner = mean_change,
        server_lr: float = 1.0,
        momentum: float = 0.0,
        waits: bool = False,
    ) -> None:
        if size < 1:
            raise ConfigError(f"buffer_size={size!r} must be at least 1")
        self.size = size
        self.waits = waits
        self._weighting = weighting
        self._combine = combine
        self._server_step = ServerStep(server_lr, momentum)
        self.memory = Collected()

    def merge(self, state: State, update: Update) -> bool:
        """Collect the update; with the last of K the global model takes its step."""
        check_fits(state, update.arrays, update.indices)
        changes, velocity = self.memory.changes, self.memory.velocity
        weight = self._weighting(update) * update.discount
        changes.append(change_of(update, weight))
        if len(changes) < self.size:
            return False
        self._server_step.take_(state, self._combine(state, changes), velocity)
        changes.clear()
        return True
