"""Momentum on the server that knows which versions its changes were made from."""

from dataclasses import dataclass, field
from typing import Any

import torch
from flwr_asyncdrop.aggregation import Aggregator
from flwr_asyncdrop.algorithms import BufferSized
from flwr_asyncdrop.parameters import in_interval, more_than, parameter, whole_from
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State

from baselines.collecting import Collecting


@dataclass
class _Step:
    mean: State
    versions: list[int]  # that its updates were made from


@dataclass
class _Steps:
    number: int = 0  # of steps so far, which is the version of the model
    latest: list[_Step] = field(default_factory=list)


class MomentumApproximation(Collecting):
    """Every K updates, ``W <- W + lr sum_j w_j D_j`` over the last N mean changes.

    At step ``t``, synchronous momentum has ``sum_s beta^(t - s) g_s``, where ``g_s`` is
    a change made from version ``s``. Of the updates in ``D_j`` a share ``A_js`` was
    made from version ``s``, so that ``sum_j w_j D_j`` has ``(A^T w)_s`` of ``g_s``. The
    weights are those of `matching`.

    It keeps `history` mean changes, each as large as the model. Older ones have no
    weight: a share of ``beta^N`` of the momentum, if nothing is stale.
    """

    def __init__(
        self,
        size: int,
        *,
        lr: float = 1.0,
        momentum: float = 0.9,
        history: int = 20,
        ridge: float = 0.01,
    ) -> None:
        super().__init__(size)
        self.collects = size + history
        self._lr, self._momentum = lr, momentum
        self._history, self._ridge = history, ridge
        self._steps = _Steps()

    def step(self, state: State, mean: State, staleness: list[int]) -> None:
        """Step with the mean changes of the last steps, this one's among them."""
        steps, now = self._steps, self._steps.number
        steps.latest.append(_Step(mean, [now - each for each in staleness]))
        steps.latest = steps.latest[-self._history :]
        versions = [step.versions for step in steps.latest]
        weights = matching(versions, now, self._momentum, self._ridge)
        for weight, step in zip(weights, steps.latest, strict=True):
            for name, change in step.mean.items():
                state[name].add_(change, alpha=self._lr * weight)
        steps.number += 1

    def state_dict(self) -> StateDict:
        """Return the last steps, and what was collected."""
        return {**super().state_dict(), "steps": to_plain(self._steps)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore both."""
        super().load_state_dict(state)
        self._steps = from_plain(_Steps, state["steps"])


def matching(
    versions: list[list[int]], now: int, momentum: float, ridge: float
) -> list[float]:
    """Return weights of steps whose sum is as near to momentum as can be.

    ``argmin_w ||A^T w - b||^2 + ridge ||w||^2`` over the versions ``s`` up to `now`
    that an update was made from, with ``b_s = momentum^(now - s)``. `versions` has, of
    each step, those of its updates.
    """
    known = sorted({version for step in versions for version in step})
    place = {version: column for column, version in enumerate(known)}
    shares = torch.zeros(len(versions), len(known), dtype=torch.float64)
    for row, step in enumerate(versions):
        for version in step:
            shares[row, place[version]] += 1 / len(step)
    wanted = [momentum ** (now - version) for version in known]
    target = torch.tensor(wanted, dtype=torch.float64)
    products = shares @ shares.T
    products += ridge * torch.eye(len(versions), dtype=torch.float64)
    weights: list[float] = torch.linalg.solve(products, shares @ target).tolist()
    return weights


@dataclass(frozen=True)
class ApproximatedMomentum(BufferSized):
    """Momentum approximation (Yu et al., arXiv 2402.09247), for FedBuff.

    Attributes
    ----------
    server_lr : float
        Learning rate of the server's step, positive.
    server_momentum : float
        The momentum that is approximated, in (0, 1).
    momentum_history : int
        Steps whose mean changes the server keeps, at least 1.
    momentum_ridge : float
        Pull of the weights towards 0, positive.
    """

    server_lr: float = parameter(
        0.1, "learning rate of the server's step", more_than(0)
    )
    server_momentum: float = parameter(
        0.9, "momentum that is approximated, in (0, 1)", in_interval("(0, 1)")
    )
    momentum_history: int = parameter(
        20, "steps whose mean changes the server keeps", whole_from(1)
    )
    momentum_ridge: float = parameter(
        0.01, "pull of the weights of past changes towards 0", more_than(0)
    )

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `MomentumApproximation`."""
        options: dict[str, Any] = {
            "lr": self.server_lr,
            "momentum": self.server_momentum,
            "history": self.momentum_history,
            "ridge": self.momentum_ridge,
        }
        return MomentumApproximation(self.size(in_flight), **options)
