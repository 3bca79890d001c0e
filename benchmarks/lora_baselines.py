"""HetLoRA's aggregation, for comparisons."""

from typing import ClassVar

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation import Aggregator, Update
from flwr_asyncdrop.submodel import Adapter, State, add_, check_fits, find_adapters


class ZeroPadded(Aggregator):
    """Average adapters of unequal ranks, padded with zeros (HetLoRA, Cho et al., 2024).

    ``A <- sum_i p_i pad(A_i)`` with ``p_i`` in proportion to the norm of ``B_i A_i``
    over all adapters together; ``B`` alike. A component that few devices train shrinks.
    What is no factor is averaged with equal weights. `size` devices wait for each
    other.
    """

    needs_base: ClassVar[bool] = False

    def __init__(self, size: int) -> None:
        self.waits_for = size
        self._updates: list[Update] = []

    def merge(self, state: State, update: Update) -> bool:
        """Collect the update; with the last one the global model is their average."""
        check_fits(state, update.arrays, update.indices)
        self._updates.append(update)
        return len(self._updates) >= self.waits_for and self.flush(state)

    @torch.no_grad()
    def flush(self, state: State) -> bool:
        """Average the updates that are there."""
        if not self._updates:
            return False
        adapters = find_adapters({n: tuple(t.shape) for n, t in state.items()})
        factors = {name for each in adapters for name in (each.a, each.b)}
        norms = [_norm(update.arrays, adapters) for update in self._updates]
        total = sum(norms)
        for name, tensor in state.items():
            mean = torch.zeros_like(tensor)
            for update, norm in zip(self._updates, norms, strict=True):
                equal = 1 / len(self._updates)
                share = norm / total if name in factors and total else equal
                dims: dict[int, Tensor] = update.indices.get(name, {})
                add_(mean, update.arrays[name], dims, share)
            tensor.copy_(mean)
        self._updates.clear()
        return True


def _norm(arrays: State, adapters: tuple[Adapter, ...]) -> float:
    """Return the Frobenius norm of all products together."""
    squares = sum(
        float((arrays[each.b] @ arrays[each.a]).square().sum()) for each in adapters
    )
    return float(squares**0.5)
