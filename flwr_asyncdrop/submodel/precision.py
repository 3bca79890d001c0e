"""Keep a model that is probed in double precision in it throughout."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload

from flwr_asyncdrop.submodel.dispatch import DispatchMode


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
