"""Leave a model as it was before a pass."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel.types import tensors_of

_PLAIN = (bool, int, float, str, tuple, type(None))


@contextmanager
def kept_state(
    model: nn.Module, written: Collection[str] = (), moving: set[str] | None = None
) -> Iterator[None]:
    """Put the model's buffers and plain attributes back on leaving.

    A pass in training mode changes statistics, and some models adapt attributes to the
    sizes that they see. Hooks and what goes with them stay: some are set up once. Of
    its parameters those that are `written` on are put back: copies of all cost memory.
    The names of buffers that have changed are added to `moving`.
    """
    modules = list(model.modules())
    plain = [
        (module, {k: v for k, v in vars(module).items() if isinstance(v, _PLAIN)})
        for module in modules
    ]
    buffers = [
        (path, module, name, buffer, buffer.clone())
        for path, module in model.named_modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    known = tensors_of(model) if written else {}
    parameters = [
        (known[name], known[name].data, known[name].detach().clone())
        for name in written
    ]
    try:
        yield
    finally:
        for module, attributes in plain:
            vars(module).update(attributes)
        for path, module, name, buffer, values in buffers:
            if moving is not None and _has_changed(module._buffers[name], values):
                moving.add(f"{path}.{name}" if path else name)
            module._buffers[name] = buffer
            # One that was made in inference mode may not be written on.
            if buffer.layout is not torch.strided or _has_changed(buffer, values):
                buffer.data.copy_(values)
        for parameter, memory, values in parameters:
            parameter.data = memory.copy_(values)


def _has_changed(buffer: Tensor | None, values: Tensor) -> bool:
    """Whether a buffer has other values by now; of a sparse one nobody asks."""
    if buffer is None or buffer.dtype != values.dtype or buffer.device != values.device:
        return True
    if buffer.is_meta or buffer.layout is not torch.strided:
        return False
    return not torch.equal(buffer, values)


def parameter_sums(model: nn.Module) -> dict[str, float | complex]:
    """Return the sum of each parameter, which shows whether somebody wrote on it."""
    return {
        name: tensor.detach().sum().item()
        for name, tensor in tensors_of(model).items()
        if isinstance(tensor, nn.Parameter)
    }
