"""Keep a model that is probed in double precision in it throughout."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


def own_precision(model: nn.Module) -> AbstractContextManager[object]:
    """Let what `model` computes in single precision be double, if its weights are.

    Many a model takes a softmax in single precision, to be exact where its weights are
    of half precision. Its rounding would hide faults, or be taken for one.
    """
    real = (p.dtype for p in model.parameters() if p.is_floating_point())
    is_double = next(real, None) is torch.float64
    return _Double() if is_double else nullcontext()  # type: ignore[no-untyped-call]


# The ignore here: torch leaves the methods of its modes untyped.
class _Double(TorchDispatchMode):  # type: ignore[no-untyped-call]  # untyped in torch
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch imports its compiler, for a second

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        keywords = dict(kwargs or {})
        if keywords.get("dtype") is torch.float32:
            keywords["dtype"] = torch.float64
        return func(*args, **keywords)
