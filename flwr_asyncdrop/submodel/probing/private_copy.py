"""A copy of the user's model whose weights may be overwritten."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.narrowing.copies import copy_module, copying
from flwr_asyncdrop.submodel.narrowing.experts import use_tensor_operations
from flwr_asyncdrop.submodel.probing.precision import as_precise
from flwr_asyncdrop.submodel.types import is_inexact, tensors_of

NOISE = 0.1


def private_copy(
    model: nn.Module, dtype: torch.dtype, noise: float = NOISE
) -> nn.Module:
    """Copy `model` to the CPU, each tensor only once; make its weights generic.

    `noise` is added to the weights, relative to their usual scale: none is then tiny.
    UnsupportedModelError if the model cannot be copied, or only in part.
    """
    with copying(model):
        memo: dict[int, Any] = {
            id(tensor): _converted(tensor, dtype)
            for tensor in itertools.chain(model.parameters(), model.buffers())
            if type(tensor) in (Tensor, nn.Parameter)
        }
        copied = copy_module(model, memo)
    use_tensor_operations(copied)
    generator = torch.Generator().manual_seed(0)
    for tensor in {id(t): t for t in tensors_of(copied).values()}.values():
        if is_inexact(tensor):
            is_parameter = isinstance(tensor, nn.Parameter)
            _make_generic(tensor.detach(), is_parameter, noise, generator)
    return copied


def _converted(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a copy on the CPU; what lies on the device meta gets zeros, masks ones."""
    kind = as_precise(tensor.dtype, dtype)
    if tensor.is_meta:
        copied = torch.zeros(tensor.shape, dtype=kind)
        if kind is torch.bool:
            copied.fill_(True)
    else:
        copied = tensor.detach().to("cpu", kind, copy=True)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(copied, requires_grad=tensor.requires_grad)
    return copied


def _make_generic(
    tensor: Tensor, is_parameter: bool, noise: float, generator: torch.Generator
) -> None:
    """Make values differ, and none tiny: what is multiplied with 0 or 1e-9 hides."""
    if not noise and not is_constant(tensor):
        return
    fresh = torch.empty_like(tensor)
    if is_parameter and tensor.dim() > 1 and tensor.numel():
        spread = 1 / math.sqrt(tensor[0].numel())
        scale = spread if is_constant(tensor) else noise * spread
        tensor.add_(fresh.normal_(0, scale, generator=generator))
    elif is_constant(tensor):
        drawn = fresh.real.uniform_(0.5, 1.5, generator=generator)
        tensor.copy_(drawn)
    elif is_parameter and tensor.numel() == 1:
        tensor.add_(torch.where(tensor.abs() < noise, 1.0, 0.0))
    elif is_parameter:
        tensor.add_(fresh.normal_(0, noise, generator=generator))


def is_constant(tensor: Tensor) -> bool:
    """Tell whether a tensor has several numbers, all of them the same."""
    return tensor.numel() > 1 and bool((tensor == tensor.flatten()[0]).all())
