"""Run a model in a precision, and keep one that is in double precision in it."""

import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

from flwr_asyncdrop.submodel.dispatch import DispatchMode
from flwr_asyncdrop.submodel.probing.caches import kept_caches

_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


def as_precise(kind: torch.dtype, dtype: torch.dtype) -> torch.dtype:
    """Return the kind of numbers that has the precision of `dtype`, a real one.

    Whole numbers and truth values stay what they are.
    """
    if kind.is_complex:
        return _COMPLEX[dtype]
    return dtype if kind.is_floating_point else kind


@contextmanager
def converted(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Let a model's parameters and buffers be in the precision of `dtype`.

    They are converted one after the other: there are never two copies of all. What code
    keeps of tensors meanwhile is gone afterwards.
    """
    kinds = [
        (tensor, tensor.dtype)
        for tensor in itertools.chain(model.parameters(), model.buffers())
        if as_precise(tensor.dtype, dtype) is not tensor.dtype
        and type(tensor) in (Tensor, nn.Parameter)
    ]
    if not kinds:
        yield
        return
    with kept_caches(model):
        try:
            for tensor, kind in kinds:
                tensor.data = tensor.data.to(as_precise(kind, dtype))
            yield
        finally:
            for tensor, kind in kinds:
                tensor.data = tensor.data.to(kind)


def own_precision(model: nn.Module) -> AbstractContextManager[object]:
    """Let what `model` computes in single precision be double, if its weights are.

    Many a model takes a softmax in single precision, to be exact where its weights are
    of half precision. Its rounding would hide faults, or be taken for one.
    """
    real = (p.dtype for p in model.parameters() if p.is_floating_point())
    is_double = next(real, None) is torch.float64
    return _Double() if is_double else nullcontext()


class _Double(DispatchMode):
    def operate(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run it; a tensor that it is to make in single precision gets double."""
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)
