"""Trimmed means and medians of changes, coordinate by coordinate."""

from collections.abc import Sequence
from math import ceil, inf

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.changes import Change, as_real, is_weight, wide
from flwr_asyncdrop.submodel import State, merge_
from flwr_asyncdrop.submodel.types import is_inexact

# Coordinates that are sorted at once: few enough to stay in a core's cache.
_BLOCK = 1 << 15
_ROUNDING = 1e-9


def num_cut(count: int, trim: float) -> int:
    """Return how many values are cut off at each end: ``ceil(trim * count)``.

    One value is always left, and two of an even number.
    """
    # 0.07 * 100 is a little more than 7.
    return max(min(ceil(trim * count - _ROUNDING), (count - 1) // 2), 0)


@torch.no_grad()
def trimmed_mean(values: Tensor, trim: float) -> tuple[Tensor, Tensor]:
    """Average each coordinate without its largest and smallest values.

    `values` has the shape ``(n, ...)`` and infinity where there is no value. `trim`, in
    [0, 1/2], is the share that `num_cut` cuts off; 1/2 leaves the median. Returns the
    mean, 0 where there is no value, and the number of values, both of shape ``(...)``.
    """
    count = len(values)
    cuts = torch.tensor([num_cut(here, trim) for here in range(count + 1)])
    mean = values.new_zeros(values.shape[1:])
    counts = torch.empty_like(mean, dtype=torch.int64)
    for block, total, present in zip(
        torch.split(values.view(count, mean.numel()), _BLOCK, 1),
        torch.split(mean.view(-1), _BLOCK),
        torch.split(counts.view(-1), _BLOCK),
        strict=True,
    ):
        rows = _sorted_rows(block)
        if bool((rows[-1] < inf).all()):
            present.fill_(count)
            left = rows[num_cut(count, trim) : count - num_cut(count, trim)]
            torch.mean(torch.stack(left), 0, out=total)
            continue
        torch.sum(block < inf, 0, out=present)
        cut = cuts.to(present.device)[present]
        summed = torch.zeros_like(wide(total))
        for place, row in enumerate(rows):
            is_left = (place >= cut) & (place < present - cut)
            summed.add_(row.where(is_left, 0.0))
        total.copy_(summed.div_((present - 2 * cut).clamp_(min=1)))
    return mean, counts


def _sorted_rows(values: Tensor) -> list[Tensor]:
    """Sort each column of a few rows; an odd-even network is 5x as fast as a sort."""
    rows = list(values.clone().unbind())
    spare = torch.empty_like(rows[0])
    for step in range(len(rows)):
        for upper in range(step % 2, len(rows) - 1, 2):
            low, high = rows[upper], rows[upper + 1]
            torch.minimum(low, high, out=spare)
            torch.maximum(low, high, out=high)
            rows[upper], spare = spare, low
    return rows


@torch.no_grad()
def trimmed_change(state: State, changes: Sequence[Change], trim: float) -> State:
    """Combine changes of submodels over the full model, without the outliers.

    Every coordinate gets the trimmed mean of ``s_i Delta_i`` over those that trained
    it, and does not change if nobody did. Running statistics get that of the new
    values; counters get the lower median, but never decrease. Numbers of examples,
    which a client can make up, do not count. `state` is only read.
    """
    combined: State = {}
    for name, tensor in state.items():
        if not is_inexact(tensor):
            combined[name] = _counter(tensor, [c.delta[name] for c in changes])
            continue
        mean, counts = trimmed_mean(_spread(name, tensor, changes), trim)
        if not is_weight(name, tensor):
            mean = torch.where(counts > 0, mean, as_real(tensor))
        combined[name] = torch.view_as_complex(mean) if tensor.is_complex() else mean
    return combined


def _spread(name: str, tensor: Tensor, changes: Sequence[Change]) -> Tensor:
    """Lay one tensor's changes over the full shape, infinity where one has none."""
    scales = is_weight(name, tensor)
    full = as_real(tensor)
    values = full.new_full((len(changes), *full.shape), inf)
    for row, change in zip(values, changes, strict=True):
        delta = as_real(change.delta[name])
        indices = {name: change.indices[name]} if name in change.indices else {}
        part = delta * change.weight if scales else delta
        merge_({name: row}, {name: part}, indices, 1.0)
    return values


def _counter(tensor: Tensor, values: Sequence[Tensor]) -> Tensor:
    # Counters have no units of their own; a plan never narrows them.
    ordered = torch.stack(list(values)).sort(0).values.to(tensor.device)
    return torch.maximum(tensor, ordered[(len(ordered) - 1) // 2])
