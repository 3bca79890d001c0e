"""Whether zeros stand for dropped units, where they are not cut out."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel.narrowing.narrow import load_submodel
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.generators import same_random_state
from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.probing.passes import mapped
from flwr_asyncdrop.submodel.transfer import silenced
from flwr_asyncdrop.submodel.types import Example, State, tensors_of
from flwr_asyncdrop.submodel.verification.training import as_given


def check_maskable(
    plan: Plan, model: nn.Module | None = None, examples: Sequence[Example] = ()
) -> None:
    """Raise ConfigError if zeros do not stand for dropped units of a verified plan.

    They do not where units are normalised together, or where experts without weights
    can still be chosen. What the model makes of them is tried on the first of the
    example inputs, if there are any: a weight may be divided by its own length.
    """
    for group in plan.groups:
        if group.kind == "stream":
            raise ConfigError(
                f"mode='masked' zeroes units, and those of {group.name} are normalised "
                "together, zeros too: choose mode='sliced', or scope='all'"
            )
        if group.kind == "expert":
            raise ConfigError(
                f"mode='masked' zeroes units, and the experts of {group.name} could "
                "still be chosen: choose mode='sliced'"
            )
    if model is None or not examples:
        return
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    # A plan may be of adapters alone, whose names are not those of the model's tensors.
    if plan.shapes.keys() != state.keys() or any(t.is_meta for t in state.values()):
        return
    few = tuple(torch.arange(max(each.least, each.size // 2)) for each in plan.groups)
    masked = silenced(state, plan.indices(few))
    finite = [_gives_numbers(model, each, examples[0]) for each in (state, masked)]
    if finite == [True, False]:
        raise ConfigError(
            f"mode='masked' zeroes units, and {type(model).__name__} gives no finite "
            "numbers with zeros, as where a weight is divided by its own length: "
            "choose mode='sliced'"
        )


@torch.no_grad()
def _gives_numbers(model: nn.Module, state: State, example: Example) -> bool:
    """Whether all that a copy of the model gives with these weights is finite."""
    tried = load_submodel(model, state, scale=False).eval()
    with same_random_state(tried):
        given = mapped(as_given(example, model), Tensor.clone)
        outputs = tensors_within(given.run(tried))
    return all(bool(output.isfinite().all()) for output in outputs)
