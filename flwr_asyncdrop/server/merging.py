"""What an aggregator, which may be anybody's own, does to the global model."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import State


def changed_by(method: Callable[..., object], arrays: State, *update: Any) -> bool:
    """Call `merge` or `flush`, and return whether the global model has changed.

    ConfigError if it says nothing, or says no and has written into the model: devices
    would go on with the version before. So it is if tensors are no longer those of the
    model that devices have.
    """
    before = {name: (tensor, writes(tensor)) for name, tensor in arrays.items()}
    kinds = _kinds(arrays)
    changed = method(arrays, *update)
    name = f"{method.__name__} of {type(getattr(method, '__self__', None)).__name__}"
    if changed is None:
        raise ConfigError(
            f"{name} returned None: return whether the global model has changed, or "
            "devices get the old one"
        )
    if _kinds(arrays) != kinds:
        raise ConfigError(
            f"{name} has changed names, shapes or dtypes of the global model: change "
            "its tensors in place"
        )
    if not changed and any(
        arrays[name] is not tensor or writes(tensor) != earlier
        for name, (tensor, earlier) in before.items()
    ):
        raise ConfigError(
            f"{name} has written into the global model and returned False, so that "
            "devices get the old one: return True, or write with the step"
        )
    return bool(changed)


def writes(tensor: Tensor) -> int:
    """Return how often a tensor was written in place; inference tensors do not know."""
    return 0 if tensor.is_inference() else tensor._version


def _kinds(arrays: State) -> dict[str, tuple[object, object]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in arrays.items()}
