"""A small convolutional network, for digits and Fashion-MNIST on a CPU."""

from collections import OrderedDict

from torch import nn

_WIDTHS = (32, 64, 128)
_POOLED = 2
# Smaller images, such as the 8x8 digits, keep their resolution at first.
_LARGE_IMAGE = 16


def cnn(input_shape: tuple[int, int, int], num_classes: int) -> nn.Sequential:
    """Build three convolutions with batch norm, then a 2x2 average and a linear layer.

    Each convolution halves the resolution, the first one only that of images of 16
    pixels or more a side.
    """
    channels, *sides = input_shape
    stride = 2 if min(sides) >= _LARGE_IMAGE else 1
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, width in enumerate(_WIDTHS, start=1):
        layers[f"conv{number}"] = nn.Conv2d(
            channels, width, 3, stride, padding=1, bias=False
        )
        layers[f"bn{number}"] = nn.BatchNorm2d(width)
        layers[f"relu{number}"] = nn.ReLU()
        channels, stride = width, 2
    layers["pool"] = nn.AdaptiveAvgPool2d(_POOLED)
    layers["flatten"] = nn.Flatten()
    layers["output"] = nn.Linear(channels * _POOLED**2, num_classes)
    return nn.Sequential(layers)
