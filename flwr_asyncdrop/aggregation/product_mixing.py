"""ProductMixing: adapters move a share of the way to each update, as products."""

from collections.abc import Mapping

import torch

from flwr_asyncdrop.aggregation.adapters import (
    adapters_of,
    kept_components,
    without_factors,
)
from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.mixing import Mixing
from flwr_asyncdrop.aggregation.products import Factors, stacked, truncated
from flwr_asyncdrop.aggregation.weighting import Weighting, constant
from flwr_asyncdrop.submodel import Pairs, State, check_fits, merge_


class ProductMixing(Mixing):
    """Mix the products of adapters on arrival, as `Mixing` does other weights.

    ``B_K A_K <- (1 - alpha) B_K A_K + alpha B_i A_i`` with the kept components ``K``,
    and as many components as before: the nearest product of that rank, see
    `truncated`. `Mixing` moves ``A`` and ``B`` apart from each other, and the product
    of two means is not the mean of two products. Dropped components keep every bit. All
    that is no factor of an adapter is mixed as `Mixing` does it.

    Parameters
    ----------
    alpha : float
        The mixing rate, in [0, 1].
    weighting : callable
        From an update to its weight in [0, 1]; 1 by default.
    pairs : sequence of tuple, optional
        As for `lora_plan`, if factors are not named like PEFT's.
    """

    def __init__(
        self,
        alpha: float = 0.5,
        weighting: Weighting = constant,
        *,
        pairs: Pairs | None = None,
    ) -> None:
        super().__init__(alpha, weighting)
        self._pairs = pairs

    def extra(self, state: State) -> Mapping[str, State]:
        """Return nothing: a model without adapters is refused before devices train."""
        adapters_of(state, self._pairs)
        return {}

    @torch.no_grad()
    def merge(self, state: State, update: Update) -> bool:
        """Mix the update in; the global model changes every time."""
        check_fits(state, update.arrays, update.indices)
        rate = self._rate_of(update)
        adapters = adapters_of(state, self._pairs)
        kept = {a: kept_components(update.indices, a) for a in adapters}
        rest = without_factors(update.arrays, adapters)
        dims = {name: d for name, d in update.indices.items() if name in rest}
        merge_(without_factors(state, adapters), rest, dims, rate)
        for adapter, components in kept.items():
            if rate == 0 or len(components) == 0:
                continue
            whole = Factors.of(state, adapter)
            part = whole.select(components)
            sent = Factors.of(update.arrays, adapter)
            total = stacked([part.scaled(1 - rate), sent.scaled(rate)])
            mixed = truncated(total, part)
            whole.replaced(components, mixed).write_(state, adapter)
        return True
