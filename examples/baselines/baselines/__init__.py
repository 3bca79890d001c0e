"""Asynchronous algorithms of others, as packages outside of flwr-asyncdrop."""

import torch
from torch import Tensor


def at_least_single(tensor: Tensor) -> Tensor:
    """Return what a server sums up for a whole run: half precision loses too much."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def as_real(tensor: Tensor) -> Tensor:
    """Return a view of the real and imaginary parts of complex numbers."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
