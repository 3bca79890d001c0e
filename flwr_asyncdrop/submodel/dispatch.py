"""Watch or change each operation that torch runs."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode


# The ignores here: torch leaves the methods of its modes untyped.
class DispatchMode(TorchDispatchMode, ABC):  # type: ignore[no-untyped-call]
    """A context in which every operation on tensors goes through `operate`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Else torch imports its compiler, for a second, only to keep it out of here.
        return False

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.operate(func, args, dict(kwargs or {}))

    @abstractmethod
    def operate(
        self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return what an operation gives; ``func(*args, **kwargs)`` runs it."""
