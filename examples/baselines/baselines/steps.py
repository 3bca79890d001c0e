"""Algorithms whose server steps in another way."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from flwr_asyncdrop.aggregation import (
    Aggregator,
    Update,
    change_of,
    is_weight,
    mean_change,
)
from flwr_asyncdrop.algorithms import Algorithm, BufferSized
from flwr_asyncdrop.parameters import in_interval, more_than, parameter, whole_from
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State, check_fits
from torch import Tensor

from baselines import as_real, at_least_single
from baselines.collecting import Collecting


@dataclass
class _Moments:
    first: State = field(default_factory=dict)
    second: State = field(default_factory=dict)
    largest: State = field(default_factory=dict)


class Moments(Collecting):
    """Averages of the mean changes ``D`` and of their squares, for steps with them.

    ``m <- b1 m + (1 - b1) D`` from 0 on, ``v <- b2 v + (1 - b2) D^2`` from `start` on.
    The real and the imaginary parts of complex numbers have moments each.
    """

    def __init__(
        self,
        size: int,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        *,
        start: float = 0.0,
        waits: bool = False,
    ) -> None:
        super().__init__(size, waits=waits)
        self.lr, self.betas, self.eps = lr, betas, eps
        self.start = start
        self.moments = _Moments()

    def follow(self, name: str, change: Tensor) -> tuple[Tensor, Tensor]:
        """Take the change of a tensor into its moments, and return them."""
        known, (one, two) = self.moments, self.betas
        change = at_least_single(as_real(change))
        first = known.first.get(name, torch.zeros_like(change))
        second = known.second.get(name, torch.full_like(change, self.start))
        first = one * first + (1 - one) * change
        second = two * second + (1 - two) * change**2
        known.first[name], known.second[name] = first, second
        return first, second

    def state_dict(self) -> StateDict:
        """Return the moments, and what was collected."""
        return {**super().state_dict(), "moments": to_plain(self.moments)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore both."""
        super().load_state_dict(state)
        self.moments = from_plain(_Moments, state["moments"])


class AmsGrad(Moments):
    """Every K updates a step of AMSGrad with the mean change.

    ``u <- max(u, v)``, and ``W <- W + lr m / (sqrt(u) + eps)``. If one of the K was
    staler than `patience`, the rate is at most one over that staleness.
    """

    def __init__(
        self,
        size: int,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        patience: int,
    ) -> None:
        super().__init__(size, lr, betas, eps)
        self._patience = patience

    def step(self, state: State, mean: State, staleness: list[int]) -> None:
        """Step with the mean."""
        lr, most = self.lr, max(staleness)
        if most > self._patience:
            lr = min(lr, 1 / most)
        largest = self.moments.largest
        for name, change in mean.items():
            first, second = self.follow(name, change)
            largest[name] = torch.maximum(largest.get(name, second), second)
            step = first / (largest[name].sqrt() + self.eps)
            as_real(state[name]).add_(step, alpha=lr)


class Adam(Moments):
    """A step of Adam with the mean change of a cohort, which waits for it.

    ``W <- W + lr m / (sqrt(v) + eps)`` with ``v = eps^2`` at first; the bias of ``m``
    and ``v`` is not corrected.
    """

    def __init__(
        self, size: int, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(size, lr, betas, eps, start=eps**2, waits=True)

    def step(self, state: State, mean: State, staleness: list[int]) -> None:
        """Step with the mean."""
        for name, change in mean.items():
            first, second = self.follow(name, change)
            step = first / (second.sqrt() + self.eps)
            as_real(state[name]).add_(step, alpha=self.lr)


class DelayAdaptiveStep(Aggregator):
    """On each arrival ``W <- W + lr min(1, patience / staleness) Delta_i``."""

    needs_base: ClassVar[bool] = True

    def __init__(self, lr: float, patience: int) -> None:
        self._lr, self._patience = lr, patience

    @torch.no_grad()
    def merge(self, state: State, update: Update) -> bool:
        """Step with the update."""
        check_fits(state, update.arrays, update.indices)
        share = min(1.0, self._patience / max(update.staleness, 1))
        mean = mean_change(state, [change_of(update, update.discount)])
        for name, tensor in state.items():
            if is_weight(name, tensor):
                tensor.add_(mean[name], alpha=self._lr * share)
            else:
                tensor.copy_(mean[name])
        return True


@dataclass(frozen=True)
class Moved(Algorithm):
    """The hyperparameters of steps with moments.

    Attributes
    ----------
    server_lr, server_beta1, server_beta2, server_eps : float
        Of the step.
    """

    server_lr: float = parameter(
        0.01, "learning rate of the server's step", more_than(0)
    )
    server_beta1: float = parameter(0.9, "decay of the mean", in_interval("[0, 1)"))
    server_beta2: float = parameter(
        0.99, "decay of the mean square", in_interval("[0, 1)")
    )
    server_eps: float = parameter(1e-8, "added to the root", more_than(0))

    @property
    def betas(self) -> tuple[float, float]:
        """Both decays."""
        return self.server_beta1, self.server_beta2


@dataclass(frozen=True)
class Fadas(Moved, BufferSized):
    """FADAS (Wang et al., ICML 2024): FedBuff with AMSGrad on the server.

    Attributes
    ----------
    tau : int
        Staleness up to which the rate is not lowered.
    """

    tau: int = parameter(10, "staleness up to which the rate stays", whole_from(1))

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `AmsGrad`."""
        return AmsGrad(
            self.size(in_flight),
            self.server_lr,
            self.betas,
            self.server_eps,
            self.tau,
        )


@dataclass(frozen=True)
class FedAdam(Moved):
    """FedAdam (Reddi et al., ICLR 2021): FedAvg with Adam on the server."""

    server_eps: float = parameter(1e-3)

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `Adam` over the whole cohort."""
        return Adam(in_flight, self.server_lr, self.betas, self.server_eps)


@dataclass(frozen=True)
class DelayAdaptive(Algorithm):
    """Asynchronous steps that shrink with staleness beyond a bound.

    Attributes
    ----------
    server_lr : float
        Learning rate of the step, positive.
    tau : int
        The bound.
    """

    server_lr: float = parameter(
        0.5, "learning rate of the server's step", more_than(0)
    )
    tau: int = parameter(10, "staleness up to which a step is whole", whole_from(1))

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `DelayAdaptiveStep`."""
        return DelayAdaptiveStep(self.server_lr, self.tau)
