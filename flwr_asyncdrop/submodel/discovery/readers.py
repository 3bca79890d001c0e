"""See the methods that give Python the values of a tensor."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

_READERS = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)


class Readers(TorchFunctionMode):
    """Sees the methods that give Python the values of a tensor, unseen by dispatch."""

    def __init__(self, note: Callable[[Sequence[Tensor]], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func in _READERS:
            self._note([args[0]])
        return func(*args, **(kwargs or {}))
