"""Models by name, with weights that depend on a seed and nothing else."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from flwr_asyncdrop.app.models.cnn import cnn
from flwr_asyncdrop.app.models.lstm import LSTMClassifier
from flwr_asyncdrop.app.models.mlp import mlp
from flwr_asyncdrop.app.models.resnet import RESNET10, RESNET18, RESNET34, ResNet
from flwr_asyncdrop.exceptions import ConfigError

# From the shape of an input, the number of outputs, and the width.
_FOR_IMAGES: dict[str, Callable[[Sequence[int], int, float], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet10": partial(ResNet, RESNET10),
    "resnet18": partial(ResNet, RESNET18),
    "resnet34": partial(ResNet, RESNET34),
}
# From the size of the vocabulary, the number of outputs, and the width.
_FOR_TEXT: dict[str, Callable[[int, int, float], nn.Module]] = {
    "lstm": LSTMClassifier,
}

MODEL_NAMES: tuple[str, ...] = (*_FOR_IMAGES, *_FOR_TEXT)
"""The names that `build_model` knows."""

TEXT_MODELS: tuple[str, ...] = tuple(_FOR_TEXT)
"""Those that read token ids; the others look at images."""


def build_model(
    name: str,
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    *,
    vocabulary: int | None = None,
    width: float = 1.0,
) -> nn.Module:
    """Build a freshly initialised model, on the CPU and in training mode.

    Parameters
    ----------
    name : str
        One of `MODEL_NAMES`.
    input_shape : sequence of int
        Of one input: (C, H, W) of an image, (T,) of a text; any for ``"mlp"``.
    num_outputs : int
        Numbers that it returns for each input: the number of classes.
    seed : int
        Decides the weights. The global random state is left untouched.
    vocabulary : int, optional
        How many token ids there are, for models that read text.
    width : float
        Factor of all hidden widths, more than 0; at least one unit stays of each.

    Raises
    ------
    ConfigError
        The name is unknown, the model is not for such inputs, or a size is too small.
    """
    if name not in MODEL_NAMES:
        raise ConfigError(
            f"unknown model {name!r}; choose from {', '.join(MODEL_NAMES)}, or "
            "package.module:function for your own"
        )
    if (name in _FOR_TEXT) != (vocabulary is not None):
        reads = "token ids" if name in _FOR_TEXT else "images"
        raise ConfigError(
            f"model {name!r} reads {reads}, which vocabulary={vocabulary} contradicts"
        )
    sizes = (*input_shape, num_outputs, *([] if vocabulary is None else [vocabulary]))
    rank = len(input_shape)
    fits = rank > 0 if name == "mlp" else rank == (3 if vocabulary is None else 1)
    if not fits or min(sizes) < 1:
        raise ConfigError(
            f"model {name!r} needs the sizes of an image or the length of a text, all "
            f"at least 1, not input_shape={tuple(input_shape)}, "
            f"vocabulary={vocabulary} and num_outputs={num_outputs}"
        )
    if not 0 < width < math.inf:
        raise ConfigError(f"width={width} must be more than 0")
    with seeded_weights(seed):
        if vocabulary is not None:
            return _FOR_TEXT[name](vocabulary, num_outputs, width)
        return _FOR_IMAGES[name](input_shape, num_outputs, width)


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Seed the CPU's global generator for a new model, and restore it afterwards."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would seed the GPUs as well.
        torch.default_generator.manual_seed(seed)
        yield
