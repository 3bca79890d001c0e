"""Buffered aggregation: the server steps once every K updates."""

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.changes import Mean
from flwr_asyncdrop.aggregation.collected import collected
from flwr_asyncdrop.aggregation.combining import Combiner
from flwr_asyncdrop.aggregation.functions import load_into, state_of
from flwr_asyncdrop.aggregation.server_step import ServerStep
from flwr_asyncdrop.aggregation.stepped import Stepped
from flwr_asyncdrop.aggregation.weighting import Weighting, constant, weight_of
from flwr_asyncdrop.state_dict import StateDict
from flwr_asyncdrop.submodel import State


class Buffered(Stepped):
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
        Makes one change of the K: FedBuff's mean by default, or see `combiner`. Any but
        a `Mean` needs the K changes one by one, each as large as the model.
    server_lr, momentum : float
        Of the `ServerStep`.
    waits : bool
        Whether devices wait for the step that their updates are part of.
    """

    def __init__(
        self,
        size: int,
        *,
        weighting: Weighting = constant,
        combine: Combiner = Mean(),  # noqa: B008  # frozen
        server_lr: float = 1.0,
        momentum: float = 0.0,
        waits: bool = False,
    ) -> None:
        super().__init__(size, waits=waits)
        self._weighting = weighting
        self._combine = combine
        self._server_step = ServerStep(server_lr, momentum)
        self._collected = collected(self.size, combine, waits=waits)
        self.collects = self._collected.models
        self._velocity: State = {}

    def state_dict(self) -> StateDict:
        """Return what waits, the velocity, and what the functions remember."""
        functions = state_of(weighting=self._weighting, combine=self._combine)
        collected, velocity = self._collected.state_dict(), dict(self._velocity)
        return {**collected, "velocity": velocity, **functions}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore them."""
        self._collected.load_state_dict(state)
        self._velocity = dict(state["velocity"])
        load_into(state, weighting=self._weighting, combine=self._combine)

    def _num_collected(self) -> int:
        return len(self._collected)

    def _collect(self, state: State, update: Update) -> None:
        weight = weight_of(update, self._weighting)
        self._collected.add(state, update, weight)

    def _step(self, state: State) -> None:
        combined = self._collected.take(state)
        self._server_step.take_(state, combined, self._velocity)
