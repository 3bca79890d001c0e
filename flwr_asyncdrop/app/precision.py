"""Lower precision for training and evaluation."""

import logging
from functools import cache

import torch
from torch import Tensor, nn

logger = logging.getLogger("flwr.asyncdrop")


def in_precision(model: nn.Module, precision: str) -> nn.Module:
    """Return a module that computes as `model` does, in the given precision.

    ``"float32"`` returns `model` itself. ``"bfloat16"`` uses ``torch.autocast``, on a
    GPU with images in channels-last order, which its tensor cores prefer. Parameters,
    those of `model`, and outputs stay ``float32``. `model` is on its final device. On
    a processor that cannot compute an LSTM in it, a model with one is returned itself.
    """
    if precision != "bfloat16":
        return model
    on_cpu = next(model.parameters()).device.type == "cpu"
    if on_cpu and _has_lstm(model) and not cpu_has_bfloat16_lstm():
        _tell_that_it_is_float32()
        return model
    return _Autocast(model)


@cache
def cpu_has_bfloat16_lstm() -> bool:
    """Tell whether this processor computes an LSTM in bfloat16, by computing one.

    oneDNN has it for AVX-512 and newer instructions. PyTorch has no other for autocast.
    """
    with torch.random.fork_rng(devices=[]), torch.autocast("cpu", torch.bfloat16):
        try:
            nn.LSTM(1, 1)(torch.zeros(1, 1, 1))
        except RuntimeError:
            return False
    return True


@cache  # once a process: it is the same for every task
def _tell_that_it_is_float32() -> None:
    logger.warning(
        "precision='bfloat16': this processor has no LSTM in bfloat16, so the model "
        "computes in float32"
    )


def _has_lstm(model: nn.Module) -> bool:
    return any(isinstance(module, nn.LSTM) for module in model.modules())


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
