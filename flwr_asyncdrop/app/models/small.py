"""The small models for images: an MLP and a convolutional network."""

import math
from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from flwr_asyncdrop.app.models.width import scaled

_WIDTHS = (32, 64, 128)
_POOLED = 2
# Smaller images, such as the 8x8 digits, keep their resolution at first.
_LARGE_IMAGE = 16
# Below this, the paper's widths of the MLP would be many times the input's.
_LARGE_INPUT = 28 * 28


def cnn(
    input_shape: Sequence[int], num_outputs: int, width: float = 1.0
) -> nn.Sequential:
    """Build three convolutions with batch norm, then a 2x2 average and a linear layer.

    They are 32, 64 and 128 channels wide, times `width`. Each convolution halves the
    resolution, the first one only that of images of 16 pixels or more a side.
    """
    channels, *sides = input_shape
    stride = 2 if min(sides) >= _LARGE_IMAGE else 1
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, base in enumerate(_WIDTHS, start=1):
        filters = scaled(base, width)
        layers[f"conv{number}"] = nn.Conv2d(
            channels, filters, 3, stride, padding=1, bias=False
        )
        layers[f"bn{number}"] = nn.BatchNorm2d(filters)
        layers[f"relu{number}"] = nn.ReLU()
        channels, stride = filters, 2
    layers["pool"] = nn.AdaptiveAvgPool2d(_POOLED)
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels * _POOLED**2, num_outputs)
    return nn.Sequential(layers)


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
