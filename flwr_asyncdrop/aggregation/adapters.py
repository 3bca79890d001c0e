"""What of the global model, and of an update, are adapters, and what is not."""

import torch
from torch import Tensor

from flwr_asyncdrop.exceptions import ShapeError, UnsupportedModelError
from flwr_asyncdrop.submodel import Adapter, Indices, Pairs, State, find_adapters
from flwr_asyncdrop.submodel.types import shapes_of


def adapters_of(state: State, pairs: Pairs | None) -> tuple[Adapter, ...]:
    """Return the adapters of a state; see `find_adapters`.

    UnsupportedModelError if their numbers are complex.
    """
    found = find_adapters(shapes_of(state), pairs)
    for adapter in found:
        if state[adapter.a].is_complex() or state[adapter.b].is_complex():
            raise UnsupportedModelError(
                f"the factors of {adapter.name} are complex, and products of real "
                "numbers alone are merged: choose another aggregator, e.g. Mixing"
            )
    return found


def without_factors(state: State, adapters: tuple[Adapter, ...]) -> State:
    """Return the tensors of a state that are no factors, such as a trained head."""
    factors = {name for adapter in adapters for name in (adapter.a, adapter.b)}
    return {name: tensor for name, tensor in state.items() if name not in factors}


def kept_components(indices: Indices, adapter: Adapter) -> Tensor:
    """Return which components of an adapter an update has, in ascending order.

    ShapeError if the factors are not cut along their components alone.
    """
    rows, columns = ({**indices.get(name, {})} for name in (adapter.a, adapter.b))
    whole = torch.arange(adapter.rank)
    kept = rows.pop(adapter.a_dim, whole)
    if rows or not torch.equal(kept, columns.pop(adapter.b_dim, whole)) or columns:
        raise ShapeError(
            f"the factors of {adapter.name} are not cut along the same components: "
            "make the plan with lora_plan, whose units these are"
        )
    return kept
