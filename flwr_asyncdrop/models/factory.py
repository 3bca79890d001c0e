"""Models by name, with weights that depend on a seed and nothing else."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.models.cnn import cnn
from flwr_asyncdrop.models.mlp import mlp
from flwr_asyncdrop.models.resnet import RESNET18, RESNET34, ResNet

InputShape = tuple[int, int, int]

_BUILDERS: dict[str, Callable[[InputShape, int], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet18": partial(ResNet, RESNET18),
    "resnet34": partial(ResNet, RESNET34),
}

MODEL_NAMES: tuple[str, ...] = tuple(_BUILDERS)
"""The names that :func:`build_model` knows."""


def build_model(
    name: str, input_shape: InputShape, num_classes: int, seed: int
) -> nn.Module:
    """Build a freshly initialised classifier.

    Parameters
    ----------
    name : str
        One of :data:`MODEL_NAMES`.
    input_shape : tuple of int
        Channels, height and width of one image.
    num_classes : int
        The number of logits.
    seed : int
        Decides the weights. The global random state is left untouched.

    Returns
    -------
    nn.Module
        On the CPU, in training mode; maps (N, C, H, W) to (N, num_classes).

    Raises
    ------
    ConfigError
        The name is unknown, or a size is below 1.
    """
    if name not in _BUILDERS:
        msg = f"unknown model {name!r}; choose from {', '.join(MODEL_NAMES)}"
        raise ConfigError(msg)
    if len(input_shape) != 3 or min(*input_shape, num_classes) < 1:
        msg = (
            f"model {name!r} needs three sizes and a number of classes, all at least "
            f"1, not input_shape={input_shape} and num_classes={num_classes}"
        )
        raise ConfigError(msg)
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would seed the GPUs as well.
        torch.default_generator.manual_seed(seed)
        return _BUILDERS[name](input_shape, num_classes)
