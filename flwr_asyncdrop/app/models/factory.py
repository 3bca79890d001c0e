"""Models by name, with weights that depend on a seed and nothing else."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from flwr_asyncdrop.app.data import Dataset
from flwr_asyncdrop.app.models.lstm import LSTMClassifier
from flwr_asyncdrop.app.models.resnet import RESNET10, RESNET18, RESNET34, ResNet
from flwr_asyncdrop.app.models.small import cnn, mlp
from flwr_asyncdrop.app.models.transformer import Transformer
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.machine_memory import Memory
from flwr_asyncdrop.readable import readable_bytes, type_of
from flwr_asyncdrop.references import call_reference

# From the shape of an input, the number of outputs, and the width.
_FOR_IMAGES: dict[str, Callable[[Sequence[int], int, float], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet10": partial(ResNet, RESNET10),
    "resnet18": partial(ResNet, RESNET18),
    "resnet34": partial(ResNet, RESNET34),
}
# From the length, the size of the vocabulary, the number of outputs, and the width.
_FOR_TEXT: dict[str, Callable[[int, int, int, float], nn.Module]] = {
    "lstm": lambda _, *sizes: LSTMClassifier(*sizes),
    "transformer": Transformer,
}
# The same, with outputs for each token.
_FOR_TOKENS: dict[str, Callable[[int, int, int, float], nn.Module]] = {
    "transformer": partial(Transformer, each_token=True),
}

# On the server, on a device, its gradients, and the message in between.
_COPIES = 4

MODEL_NAMES: tuple[str, ...] = (*_FOR_IMAGES, *_FOR_TEXT)
TEXT_MODELS: tuple[str, ...] = tuple(_FOR_TEXT)
NEXT_WORD_MODELS: tuple[str, ...] = tuple(_FOR_TOKENS)


def build_model(
    name: str,
    input_shape: Sequence[int],
    num_outputs: int,
    seed: int,
    *,
    vocabulary: int | None = None,
    width: float = 1.0,
    each_token: bool = False,
) -> nn.Module:
    """Build a new model, on the CPU and in training mode; `seed` decides its weights.

    An input has the shape (C, H, W) of an image or (T,) of a text, any for ``"mlp"``.
    Models that read text need a `vocabulary`, the number of token ids. `width` is a
    factor of all hidden widths; at least one unit stays of each. With `each_token` the
    model, one of `NEXT_WORD_MODELS`, is causal and has outputs of each token.
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
    if each_token and name not in _FOR_TOKENS:
        raise ConfigError(
            f"model {name!r} has no outputs of each token: choose from "
            f"{', '.join(NEXT_WORD_MODELS)}"
        )

    def build() -> nn.Module:
        if vocabulary is not None:
            models = _FOR_TOKENS if each_token else _FOR_TEXT
            return models[name](input_shape[0], vocabulary, num_outputs, width)
        return _FOR_IMAGES[name](input_shape, num_outputs, width)

    if width > 1:
        _check_fits(build, width)
    with seeded_weights(seed):
        return build()


def _check_fits(build: Callable[[], nn.Module], width: float) -> None:
    """Refuse a model that is too large for this machine, before it is made."""
    memory = Memory.here().total
    try:
        with torch.device("meta"):  # shapes alone
            tensors = build().state_dict().values()
        needed = _COPIES * sum(tensor.nbytes for tensor in tensors)
    except (OverflowError, RuntimeError, TypeError):  # more than a shape can say
        needed = None
    if needed is not None and (memory is None or needed <= memory):
        return
    size = "more than can be counted" if needed is None else readable_bytes(needed)
    has = "" if memory is None else f", and this machine has {readable_bytes(memory)}"
    raise ConfigError(
        f"width={width:g} makes a model that takes {size} to train{has}: choose a "
        "smaller width"
    )


@contextmanager
def seeded_weights(seed: int) -> Iterator[None]:
    """Seed the CPU's global generator for a new model, and restore it afterwards."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        # `torch.manual_seed` would seed the GPUs as well.
        torch.default_generator.manual_seed(seed)
        yield


ModelFunction = Callable[[Dataset, float], nn.Module]
"""From the data set, and the factor of all hidden widths, to a new model."""


def build_own_model(
    reference: str, data: Dataset, width: float, seed: int
) -> nn.Module:
    """Build the model that ``"package.module:function"`` names; see `ModelFunction`."""
    with seeded_weights(seed):
        model: object = call_reference("model", reference, data, width)
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model={reference!r} returned {type_of(model)}: return an nn.Module"
        )
    return model
