"""Buffered aggregation: the server steps once every K updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.aggregator import Aggregator, Update
from flwr_asyncdrop.aggregation.weighting import Weighting, constant
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import Indices, State, add_, check_fits

__all__ = ["Buffered", "Change", "Normaliser", "change_of", "mean_change"]

Normaliser = Literal["size", "examples", "counts"]
"""What the sum of the changes is divided by; see `mean_change`."""

# PyTorch's names for the buffers of its batch normalisation. They are statistics, not
# weights: a variance that follows sums of differences could become negative.
_STATISTICS = ("running_mean", "running_var")


@dataclass(frozen=True)
class Change:
    """What an update asks of the global model.

    Attributes
    ----------
    delta : dict of str to Tensor
        ``W_i - W_dispatched``, of the submodel's shapes; for counters and running
        statistics the new values themselves.
    indices : dict of str to dict of int to Tensor
        Where they belong in the full model.
    weight : float
        How much the update counts.
    num_examples : int
        How many examples the device trained on.
    """

    delta: State
    indices: Indices
    weight: float
    num_examples: int


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
    normaliser : {"size", "examples", "counts"}
        See `mean_change`.
    server_lr : float
        ``lr``, positive.
    momentum : float
        ``beta`` in [0, 1) of the server's step: ``V <- beta V + step``,
        ``W <- W + lr V``.
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
        normaliser: Normaliser = "size",
        server_lr: float = 1.0,
        momentum: float = 0.0,
        waits: bool = False,
    ) -> None:
        if size < 1:
            raise ConfigError(f"buffer_size={size!r} must be at least 1")
        if not server_lr > 0:
            raise ConfigError(f"server_lr={server_lr!r} must be more than 0")
        if not 0 <= momentum < 1:
            raise ConfigError(f"server_momentum={momentum!r} must lie in [0, 1)")
        self.size = size
        self.waits = waits
        self._weighting = weighting
        self._normaliser: Normaliser = normaliser
        self._server_lr = server_lr
        self._momentum = momentum
        self._changes: list[Change] = []
        self._velocity: State = {}

    def merge(self, state: State, update: Update) -> bool:
        """Collect the update; with the last of K the global model takes its step."""
        check_fits(state, update.arrays, update.indices)
        self._changes.append(change_of(update, self._weighting(update)))
        if len(self._changes) < self.size:
            return False
        self._step(state, mean_change(state, self._changes, self._normaliser))
        self._changes.clear()
        return True

    @torch.no_grad()
    def _step(self, state: State, mean: State) -> None:
        for name, tensor in state.items():
            if not _is_weight(name, tensor):
                tensor.copy_(mean[name])
                continue
            step = mean[name]
            if self._momentum:
                if name in self._velocity:
                    step = step.add_(self._velocity[name], alpha=self._momentum)
                self._velocity[name] = step
            tensor.add_(step, alpha=self._server_lr)


@torch.no_grad()
def change_of(update: Update, weight: float = 1.0) -> Change:
    """Return what an update asks for, against what its device was sent.

    Raises
    ------
    ConfigError
        If the update does not come with what its device was sent.
    """
    if update.base is None:
        raise ConfigError("a change needs its base: keep what each device was sent")
    base = update.base
    delta = {
        name: tensor - base[name] if _is_weight(name, tensor) else tensor
        for name, tensor in update.arrays.items()
    }
    return Change(delta, update.indices, weight, update.num_examples)


@torch.no_grad()
def mean_change(
    state: State, changes: Sequence[Change], normaliser: Normaliser = "size"
) -> State:
    """Average changes of submodels over the full model.

    Coordinates that a submodel leaves out count as unchanged. Of ``K`` changes with
    weights ``s_i``, masks ``m_i`` and ``n_i`` examples it returns ``sum_i c_i m_i
    Delta_i`` with

    - ``c_i = s_i / K`` for ``"size"`` (FedBuff),
    - ``c_i = s_i n_i / sum_j n_j`` for ``"examples"`` (FedAvg),
    - ``c_i = s_i / max(sum_j m_j, 1)`` for ``"counts"``: a coordinate is averaged
      over those that trained it (``N_r`` of the paper's Theorem 1).

    Running statistics are averaged over those that trained them, and counters take
    the maximum; both are new values, not changes.

    Parameters
    ----------
    state : dict of str to Tensor
        The global model; only read.
    changes : sequence of Change
        At least one.
    normaliser : {"size", "examples", "counts"}
        As above.

    Returns
    -------
    dict of str to Tensor
        Of the full model's shapes.
    """
    shares = _shares(changes, normaliser)
    mean: State = {}
    for name, tensor in state.items():
        parts = [
            (change.delta[name], change.indices.get(name, {})) for change in changes
        ]
        if _is_weight(name, tensor):
            mean[name] = _weighted_sum(tensor, parts, shares)
            if normaliser == "counts":
                mean[name].div_(_counts(tensor, parts).clamp_(min=1))
        elif tensor.is_floating_point():
            counts = _counts(tensor, parts)
            total = _weighted_sum(tensor, parts, [1.0] * len(parts))
            mean[name] = torch.where(counts > 0, total / counts.clamp(min=1), tensor)
        else:
            mean[name] = _maximum(tensor, parts)
    return mean


def _shares(changes: Sequence[Change], normaliser: Normaliser) -> list[float]:
    if normaliser == "examples":
        total = max(sum(change.num_examples for change in changes), 1)
        return [change.weight * (change.num_examples / total) for change in changes]
    if normaliser == "size":
        return [change.weight * (1 / len(changes)) for change in changes]
    return [change.weight for change in changes]


_Part = tuple[Tensor, dict[int, Tensor]]


def _weighted_sum(
    like: Tensor, parts: Sequence[_Part], shares: Sequence[float]
) -> Tensor:
    total = torch.zeros_like(like)
    for (delta, dims), share in zip(parts, shares, strict=True):
        add_(total, delta.to(like.device), dims, share)
    return total


def _counts(like: Tensor, parts: Sequence[_Part]) -> Tensor:
    """Return how many parts hold each coordinate."""
    if not any(dims for _, dims in parts):
        return torch.full_like(like, len(parts))
    counts = torch.zeros_like(like)
    for delta, dims in parts:
        add_(counts, torch.ones_like(delta, device=like.device), dims)
    return counts


def _maximum(tensor: Tensor, parts: Sequence[_Part]) -> Tensor:
    """Return the largest value of each coordinate of a counter."""
    largest = tensor.clone()
    for part, dims in parts:
        # Counters have no units of their own; a plan never narrows them.
        if not dims:
            torch.maximum(largest, part.to(tensor.device), out=largest)
    return largest


def _is_weight(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor moves by changes, not by new values."""
    is_number = tensor.is_floating_point() or tensor.is_complex()
    return is_number and name.rpartition(".")[2] not in _STATISTICS
