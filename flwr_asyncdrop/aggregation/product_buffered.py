"""ProductBuffered: the server steps by the mean change of the adapters' products."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flwr_asyncdrop.aggregation.adapters import (
    adapters_of,
    kept_components,
    without_factors,
)
from flwr_asyncdrop.aggregation.aggregator import Update
from flwr_asyncdrop.aggregation.changes import (
    NORMALISERS,
    Change,
    Normaliser,
    change_of,
    mean_change,
    shares_of,
)
from flwr_asyncdrop.aggregation.functions import load_into, state_of
from flwr_asyncdrop.aggregation.products import Factors, stacked, truncated
from flwr_asyncdrop.aggregation.server_step import ServerStep
from flwr_asyncdrop.aggregation.stepped import Stepped
from flwr_asyncdrop.aggregation.weighting import Weighting, constant, weight_of
from flwr_asyncdrop.state_dict import StateDict, from_plain, to_plain
from flwr_asyncdrop.submodel import Adapter, Pairs, State


@dataclass(frozen=True)
class _ProductChange:
    """The change of what is no factor, and of every adapter the factors of its change.

    ``B_i A_i - B A`` with what was sent, as ``[B_i, -B]`` and ``[A_i; A]``, by the
    names of ``A``; `kept` has the numbers of the components.
    """

    rest: Change
    b: dict[str, Tensor]
    a: dict[str, Tensor]
    kept: dict[str, Tensor]


class ProductBuffered(Stepped):
    """Collect K updates, then take a step with the mean change of the products.

    ``B A <- B A + lr sum_i c_i (B_i A_i - B_sent A_sent)``: the factors of all updates
    are stacked, which is exact (FLoRA), and cut off to the rank that there was (see
    `truncated`). With the whole cohort, weights by examples and devices that wait, it
    is FlexLoRA. What is no factor of an adapter takes the step that `Buffered` takes.

    Parameters
    ----------
    size : int
        ``K``, at least 1.
    weighting : callable
        ``s``, from an update to its weight.
    normaliser : {"size", "examples", "counts"}
        ``c_i``, as in `mean_change`: ``s_i / K``; by examples; or ``s_i`` over how many
        of the K updates trained a component, each on its own.
    server_lr : float
        ``lr``, more than 0.
    waits : bool
        Whether devices wait for the step that their updates are part of.
    pairs : sequence of tuple, optional
        As for `lora_plan`, if factors are not named like PEFT's.
    """

    def __init__(
        self,
        size: int,
        *,
        weighting: Weighting = constant,
        normaliser: Normaliser = "size",
        server_lr: float = 1.0,
        waits: bool = False,
        pairs: Pairs | None = None,
    ) -> None:
        super().__init__(size, waits=waits)
        self.collects = self.size
        self._weighting = weighting
        self._normaliser: Normaliser = NORMALISERS.check("normaliser", normaliser)
        self._server_lr = server_lr
        self._server_step = ServerStep(server_lr)
        self._pairs = pairs
        self._changes: list[_ProductChange] = []

    def extra(self, state: State) -> Mapping[str, State]:
        """Return nothing: a model without adapters is refused before devices train."""
        adapters_of(state, self._pairs)
        return {}

    def state_dict(self) -> StateDict:
        """Return the changes that wait for the next step, and the weighting's."""
        changes = to_plain(self._changes)
        return {"changes": changes, **state_of(weighting=self._weighting)}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore them."""
        self._changes = from_plain(list[_ProductChange], state["changes"])
        load_into(state, weighting=self._weighting)

    def _num_collected(self) -> int:
        return len(self._changes)

    @torch.no_grad()
    def _collect(self, state: State, update: Update) -> None:
        weight = weight_of(update, self._weighting)
        adapters = adapters_of(state, self._pairs)
        self._changes.append(_change(update, adapters, weight))

    @torch.no_grad()
    def _step(self, state: State) -> None:
        adapters = adapters_of(state, self._pairs)
        rest = without_factors(state, adapters)
        changes = [change.rest for change in self._changes]
        mean = mean_change(rest, changes, self._normaliser)
        self._server_step.take_(rest, mean, {})
        shares = shares_of(changes, self._normaliser)
        for adapter in adapters:
            if not any(len(change.kept[adapter.a]) for change in self._changes):
                continue  # every bit stays
            now = Factors.of(state, adapter)
            parts = [now, *self._parts(adapter, shares)]
            truncated(stacked(parts), now).write_(state, adapter)
        self._changes.clear()

    def _parts(self, adapter: Adapter, shares: Sequence[float]) -> list[Factors]:
        """Return the changes of a product, each times its share of the step."""
        counts = torch.zeros(adapter.rank, dtype=torch.float64)
        for change in self._changes:
            counts[change.kept[adapter.a]] += 1
        parts = []
        for change, share in zip(self._changes, shares, strict=True):
            factor: float | Tensor = self._server_lr * share
            if self._normaliser == "counts":
                # A component, and what it was when it was sent.
                factor = factor / counts[change.kept[adapter.a]].repeat(2)
            part = Factors(change.b[adapter.a], change.a[adapter.a])
            parts.append(part.scaled(factor))
        return parts


def _change(
    update: Update, adapters: tuple[Adapter, ...], weight: float
) -> _ProductChange:
    b, a, kept = {}, {}, {}
    for adapter in adapters:
        kept[adapter.a] = kept_components(update.indices, adapter)
        now = Factors.of(update.arrays, adapter)
        then = Factors.of(update.sent, adapter)
        both = stacked([now, then.scaled(-1.0)])
        b[adapter.a], a[adapter.a] = both.b.cpu(), both.a.cpu()
    whole = change_of(update, weight)
    rest = Change(
        without_factors(whole.delta, adapters),
        whole.indices,
        weight,
        update.num_examples,
    )
    return _ProductChange(rest, b, a, kept)
