"""Algorithms whose server steps in another way."""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from flwr_asyncdrop.aggregation import (
    Aggregator,
    Change,
    Update,
    change_of,
    is_weight,
    mean_change,
)
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.parameters import at_least, in_interval, more_than, parameter
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import State, check_fits


@dataclass
class _Moments:
    changes: list[Change] = field(default_factory=list)
    most_staleness: int = 0
    first: State = field(default_factory=dict)
    second: State = field(default_factory=dict)
    largest: State = field(default_factory=dict)


class AmsGrad(Aggregator):
    """Every K updates a step of AMSGrad with the mean change ``D``.

    ``m <- b1 m + (1 - b1) D``, ``v <- b2 v + (1 - b2) D^2``, ``u <- max(u, v)``, and
    ``W <- W + lr m / (sqrt(u) + eps)``. If one of the K was staler than `patience`, the
    rate is at most one over that staleness.
    """

    needs_base: ClassVar[bool] = True

    def __init__(
        self,
        size: int,
        lr: float,
        betas: tuple[float, float],
        eps: float,
        patience: int,
    ) -> None:
        self.updates_per_version = self.collects = size
        self._lr, self._betas, self._eps = lr, betas, eps
        self._patience = patience
        self._moments = _Moments()

    @torch.no_grad()
    def merge(self, state: State, update: Update) -> bool:
        """Collect the update; with the last of K, step."""
        check_fits(state, update.arrays, update.indices)
        known = self._moments
        known.changes.append(change_of(update, update.discount))
        known.most_staleness = max(known.most_staleness, update.staleness)
        if len(known.changes) < self.updates_per_version:
            return False
        mean = mean_change(state, known.changes)
        lr = self._lr
        if known.most_staleness > self._patience:
            lr = min(lr, 1 / known.most_staleness)
        for name, tensor in state.items():
            if is_weight(name, tensor):
                tensor.add_(self._direction(name, mean[name]), alpha=lr)
            else:
                tensor.copy_(mean[name])
        known.changes, known.most_staleness = [], 0
        return True

    def _direction(self, name: str, mean: torch.Tensor) -> torch.Tensor:
        known, (one, two) = self._moments, self._betas
        zero = torch.zeros_like(mean)
        first = one * known.first.get(name, zero) + (1 - one) * mean
        second = two * known.second.get(name, zero) + (1 - two) * mean**2
        largest = torch.maximum(known.largest.get(name, zero), second)
        known.first[name], known.second[name] = first, second
        known.largest[name] = largest
        return first / (largest.sqrt() + self._eps)

    def state_dict(self) -> StateDict:
        """Return the moments, and what was collected."""
        plain: StateDict = to_plain(self._moments)
        return plain

    def load_state_dict(self, state: StateDict) -> None:
        """Restore both."""
        self._moments = from_plain(_Moments, state)


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
class Fadas(Algorithm):
    """FADAS (Wang et al., ICML 2024): FedBuff with AMSGrad on the server.

    Attributes
    ----------
    buffer_size : int or None
        Updates that are collected before the server steps; None for half of the
        devices in flight.
    server_lr, server_beta1, server_beta2, server_eps : float
        Of AMSGrad.
    tau : int
        Staleness up to which the rate is not lowered.
    """

    buffer_size: int | None = parameter(
        None,
        "updates collected before the server steps; left out: half of in-flight",
        at_least(1),
    )
    server_lr: float = parameter(
        0.01, "learning rate of the server's step", more_than(0)
    )
    server_beta1: float = parameter(0.9, "decay of the mean", in_interval("[0, 1)"))
    server_beta2: float = parameter(
        0.99, "decay of the mean square", in_interval("[0, 1)")
    )
    server_eps: float = parameter(1e-8, "added to the root", more_than(0))
    tau: int = parameter(10, "staleness up to which the rate stays", at_least(1))

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `AmsGrad`."""
        return AmsGrad(
            self.buffer_size or max(in_flight // 2, 1),
            self.server_lr,
            (self.server_beta1, self.server_beta2),
            self.server_eps,
            self.tau,
        )


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
    tau: int = parameter(10, "staleness up to which a step is whole", at_least(1))

    def aggregator(self, in_flight: int) -> Aggregator:
        """Return `DelayAdaptiveStep`."""
        return DelayAdaptiveStep(self.server_lr, self.tau)
