"""How much one step of a model computes."""

from typing import Any

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from flwr_asyncdrop.submodel.kernels import plain_kernels


def step_flops(model: nn.Module, example_inputs: Tensor | tuple[Any, ...]) -> int:
    """Return the floating-point operations of one forward pass.

    A multiplication and an addition count as two; only matrix products, convolutions
    and attention count, as in `torch.utils.flop_counter`. A training step costs some
    three times as much.

    Parameters
    ----------
    model : Module
        Full or narrow. Runs once in eval mode; its tensors and modes stay as they are.
    example_inputs : Tensor or tuple
        The positional arguments of one forward pass, on the model's device.
    """
    is_tensor = isinstance(example_inputs, Tensor)
    inputs = (example_inputs,) if is_tensor else example_inputs
    modes = {module: module.training for module in model.modules()}
    counter = FlopCounterMode(display=False)
    try:
        model.eval()
        with plain_kernels(), counter:
            model(*inputs)
    finally:
        for module, mode in modes.items():
            module.training = mode
    return int(counter.get_total_flops())
