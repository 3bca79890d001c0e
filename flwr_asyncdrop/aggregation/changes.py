"""The changes that updates ask for, and their mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.parameters import one_of
from flwr_asyncdrop.submodel import Indices, State, add_
from flwr_asyncdrop.submodel.types import STATISTICS, is_inexact

Normaliser = Literal["size", "examples", "counts"]
"""What the sum of the changes is divided by; see `mean_change`."""

NORMALISERS = one_of(*get_args(Normaliser))


@dataclass(frozen=True)
class Change:
    """What an update asks of the global model.

    `delta` is ``W_i - W_dispatched``, of the submodel's shapes; for counters and
    running statistics it is the new values themselves.
    """

    delta: State
    indices: Indices
    weight: float
    num_examples: int


@torch.no_grad()
def change_of(update: Update, weight: float = 1.0) -> Change:
    """Return the change of an update, which must have its base."""
    base = update.sent
    delta = {
        name: tensor - base[name] if is_weight(name, tensor) else tensor
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
      over those that trained it (``N_r`` of Theorem 1 of Dun et al., 2023).

    Running statistics are averaged over those that trained them, and counters take
    the maximum; both are new values, not changes. `state` is only read.
    """
    shares = shares_of(changes, normaliser)
    mean: State = {}
    for name, tensor in state.items():
        parts = [(c.delta[name], c.indices.get(name, {})) for c in changes]
        if is_weight(name, tensor):
            total = _weighted_sum(wide(tensor), parts, shares)
            if normaliser == "counts":
                total.div_(_counts(tensor, parts).clamp_(min=1))
            mean[name] = total.to(tensor.dtype)
        elif is_inexact(tensor):
            counts = _counts(tensor, parts)
            total = _weighted_sum(wide(tensor), parts, [1.0] * len(parts))
            mean[name] = mean_or(tensor, total, counts)
        else:
            mean[name] = _maximum(tensor, parts)
    return mean


@dataclass(frozen=True)
class Mean:
    """`mean_change` with a normaliser, as a combination of changes."""

    normaliser: Normaliser = "size"

    def __post_init__(self) -> None:
        NORMALISERS.check("normaliser", self.normaliser)

    def __call__(self, state: State, changes: Sequence[Change]) -> State:
        """Return the mean."""
        return mean_change(state, changes, self.normaliser)


def shares_of(changes: Sequence[Change], normaliser: Normaliser) -> list[float]:
    """Return the ``c_i`` of `mean_change`; without the counts for ``"counts"``."""
    NORMALISERS.check("normaliser", normaliser)
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
        add_(total, delta.to(like), dims, share)
    return total


def mean_or(tensor: Tensor, total: Tensor, counts: Tensor) -> Tensor:
    """Return a total over its counts, and what a tensor has where they are 0."""
    mean = (total / counts.clamp(min=1)).to(tensor.dtype)
    return torch.where(counts > 0, mean, tensor)


def _counts(like: Tensor, parts: Sequence[_Part]) -> Tensor:
    """Return how many parts hold each coordinate, broadcastable to `like`."""
    counts = wide(real_part(like)).new_zeros((1,) * like.ndim)
    for _, dims in parts:
        counts = counts + held(like, dims)
    return counts


def held(like: Tensor, dims: Mapping[int, Tensor]) -> Tensor:
    """Return 1 where a part holds a coordinate, else 0, broadcastable to `like`.

    It holds a coordinate if it holds its position in each narrowed dim, so its size is
    1 in the others: for a kernel it has an element for each pair of channels.
    """
    mask = wide(real_part(like)).new_ones((1,) * like.ndim)
    for dim, kept in dims.items():
        along = mask.new_zeros(like.shape[dim])
        along[kept.to(along.device)] = 1
        mask = mask * along.view(-1, *[1] * (like.ndim - dim - 1))
    return mask


def real_part(tensor: Tensor) -> Tensor:
    """Return the real part: it counts as the whole does, and can be compared."""
    return tensor.real if tensor.is_complex() else tensor


def as_real(tensor: Tensor) -> Tensor:
    """Return complex numbers as pairs of real ones, along a last dim of their own."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def wide(tensor: Tensor) -> Tensor:
    """Return numbers in single precision at least: half has no room to add them up."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _maximum(tensor: Tensor, parts: Sequence[_Part]) -> Tensor:
    largest = tensor.clone()
    for part, dims in parts:
        # Counters have no units of their own; a plan never narrows them.
        if not dims:
            torch.maximum(largest, part.to(tensor.device), out=largest)
    return largest


def is_weight(name: str, tensor: Tensor) -> bool:
    """Return whether a tensor moves by changes, not by new values."""
    # A variance that follows sums of differences could become negative.
    return is_inexact(tensor) and name.rpartition(".")[2] not in STATISTICS
