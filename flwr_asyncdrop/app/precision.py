"""Lower precision for training and evaluation."""

import torch
from torch import Tensor, nn


def in_precision(model: nn.Module, precision: str) -> nn.Module:
    """Return a module that computes as `model` does, in the given precision.

    ``"float32"`` returns `model` itself. ``"bfloat16"`` uses ``torch.autocast``, on a
    GPU with images in channels-last order, which its tensor cores prefer. Parameters,
    those of `model`, and outputs stay ``float32``. `model` is on its final device.
    """
    return _Autocast(model) if precision == "bfloat16" else model


class _Autocast(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.training = model.training
        self._device = next(model.parameters()).device
        if self._device.type == "cuda":
            # torch's overloads of Module.to leave memory_format alone out.
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, inputs: Tensor) -> Tensor:
        if inputs.is_cuda and inputs.dim() == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device.type, dtype=torch.bfloat16):
            outputs: Tensor = self.model(inputs)
        return outputs.float()
