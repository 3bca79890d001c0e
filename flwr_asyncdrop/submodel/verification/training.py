"""Load a submodel in place, as a client does, and train it for a step."""

import warnings
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.readable import kind_and_line
from flwr_asyncdrop.submodel.default_device import given_default
from flwr_asyncdrop.submodel.kernels import uncompiled
from flwr_asyncdrop.submodel.narrowing.in_place import check_separate, load_in_place
from flwr_asyncdrop.submodel.narrowing.narrow import blank_copy
from flwr_asyncdrop.submodel.plan import Plan
from flwr_asyncdrop.submodel.probing.caches import kept_caches
from flwr_asyncdrop.submodel.probing.generators import same_random_state
from flwr_asyncdrop.submodel.probing.nested import tensors_within
from flwr_asyncdrop.submodel.probing.passes import mapped
from flwr_asyncdrop.submodel.transfer import extract
from flwr_asyncdrop.submodel.types import Example, Keep, shapes_of, tensors_of
from flwr_asyncdrop.submodel.verification.verify import bisect


def find_untrainable(model: nn.Module, example: Example, plan: Plan) -> dict[int, str]:
    """Return which groups of `plan` cannot be dropped in training, and why.

    A submodel is extracted from `model` itself, loaded, and run forward and backward
    with the kernels that training uses.

    Raises
    ------
    UnsupportedModelError
        If the full model does not run backward.
    """
    if not plan.groups:
        return {}
    with kept_caches(model):
        return _find_untrainable(model, example, plan)


def _find_untrainable(model: nn.Module, example: Example, plan: Plan) -> dict[int, str]:
    example = _as_it_trains(model, example, plan)

    def fault(groups: Sequence[int]) -> str | None:
        why = _why_untrainable(model, example, plan, few(plan, groups))
        return None if why is None else f"a submodel does not train ({why})"

    faults = bisect(range(len(plan.groups)), fault)
    if len(faults) == len(plan.groups):
        why = _why_untrainable(model, example, plan, plan.full_keep())
        if why is not None:
            raise UnsupportedModelError(
                f"{type(model).__name__} does not train on the example inputs ({why}): "
                "pass inputs as training does"
            )
    return faults


def _as_it_trains(model: nn.Module, example: Example, plan: Plan) -> Example:
    """Return the example in that of the model's precisions in which it trains.

    Of several nobody knows any more in which it was given.
    """
    first, *others = (_converted(example, model, k) for k in _precisions(model))
    whole = plan.full_keep()
    if not others or _why_untrainable(model, first, plan, whole) is None:
        return first
    found = (k for k in others if _why_untrainable(model, k, plan, whole) is None)
    return next(found, first)


def _why_untrainable(
    model: nn.Module, example: Example, plan: Plan, keep: Keep
) -> str | None:
    state = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    with (
        same_random_state(model),
        uncompiled(),
        warnings.catch_warnings(action="ignore"),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        try:
            sub = extract(state, plan.indices(keep))
            check_separate(model, shapes_of(sub))
            blank, _ = blank_copy(model, shapes_of(state), torch.empty)
            small = load_in_place(blank, sub).train()
            del sub
            with given_default():
                outputs = tensors_within(mapped(example, Tensor.clone).run(small))
                losses = [
                    output.abs().square().mean()
                    for output in outputs
                    if output.requires_grad
                ]
                if losses:
                    torch.autograd.backward(losses)
        except Exception as error:  # whatever the model's own code raises
            return kind_and_line(error)
    return None


def few(plan: Plan, groups: Sequence[int]) -> Keep:
    """Keep about a quarter of the units of `groups`, spread over each."""
    keep = list(plan.full_keep())
    for group in groups:
        size = plan.groups[group].size
        count = max(size // 4 | 1, plan.groups[group].least)
        keep[group] = torch.arange(min(count, size)) * size // min(count, size)
    return tuple(keep)


def as_given(example: Example, model: nn.Module) -> Example:
    """Return the example on the device of `model`, in its precision.

    A tensor in one of several precisions of the model stays in it.
    """
    return _converted(example, model, *_precisions(model))


def _precisions(model: nn.Module) -> Sequence[torch.dtype]:
    """Return the precisions of the model's parameters, each once."""
    found = (p.dtype for p in model.parameters())
    real = [k.to_real() for k in found if k.is_floating_point or k.is_complex]
    return list(dict.fromkeys(real)) or [torch.float32]


def _converted(example: Example, model: nn.Module, *kinds: torch.dtype) -> Example:
    """Return the example on the device of `model`, in the first of these precisions.

    A tensor that is in another one of them stays so.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))

    def convert(tensor: Tensor) -> Tensor:
        kind = tensor.dtype
        if kind.is_floating_point or kind.is_complex:
            real = kind.to_real() if kind.to_real() in kinds else kinds[0]
            kind = real.to_complex() if kind.is_complex else real
        return tensor.to(device, kind)

    return mapped(example, convert)
