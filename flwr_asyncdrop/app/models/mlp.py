"""The paper's multi-layer perceptron."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from flwr_asyncdrop.app.models.width import scaled

# Below this, the paper's widths would be many times the input's.
_LARGE_INPUT = 28 * 28


def mlp(
    input_shape: Sequence[int], num_outputs: int, width: float = 1.0
) -> nn.Sequential:
    """Build two hidden layers, of 512 and 256 units times `width`.

    Inputs of fewer than 28x28 values, such as the 8x8 digits, get 128 and 64.
    """
    inputs = math.prod(input_shape)
    sizes = (512, 256) if inputs >= _LARGE_INPUT else (128, 64)
    first, second = (scaled(size, width) for size in sizes)
    return nn.Sequential(
        OrderedDict(
            flatten=nn.Flatten(),
            hidden1=nn.Linear(inputs, first),
            relu1=nn.ReLU(),
            hidden2=nn.Linear(first, second),
            relu2=nn.ReLU(),
            output=nn.Linear(second, num_outputs),
        )
    )
