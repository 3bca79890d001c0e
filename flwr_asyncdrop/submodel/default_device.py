"""Compute on the CPU, whatever device tensors are made on by default."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar

import torch

_given: ContextVar[torch.device | None] = ContextVar("given", default=None)


@contextmanager
def cpu_by_default() -> Iterator[None]:
    """Make tensors on the CPU where no device is said; also as a decorator."""
    device = torch.get_default_device()
    if device.type == "cpu":  # PyTorch 2.6 does not see `with torch.device(...)`
        device = torch.empty(0).device
    if device.type == "cpu":
        yield
        return
    # What lies on the device meta has no values to try a plan with.
    token = _given.set(None if device.type == "meta" else device)
    try:
        with torch.device("cpu"):
            yield
    finally:
        _given.reset(token)


def given_default() -> AbstractContextManager[object]:
    """Bring back, inside of `cpu_by_default`, the default around it, unless it is meta.

    For a pass of the user's model on its own device.
    """
    return _given.get() or nullcontext()
