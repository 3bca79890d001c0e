"""The model zoo: how each model is built and what it takes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType

import torch
from torch import Tensor, nn

from flwr_asyncdrop.app.models import build_model
from tests.zoo import models

__all__ = ["HAND_WRITTEN", "VISION", "Entry", "vision_entry"]


@dataclass(frozen=True)
class Entry:
    """A model of the zoo.

    Attributes
    ----------
    build : callable
        Makes the model; its weights come from the global random state.
    shape : tuple of int
        The shape of one example.
    tokens : bool
        Whether the examples are token numbers; else they are real numbers.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    tokens: bool = False

    def model(self) -> nn.Module:
        """Return the model with weights from a fixed seed.

        Weights that start at zero or next to it, as in some heads and layer scales,
        are made larger: else one step would not reach what lies behind them.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = self.build()
            for parameter in model.parameters():
                if parameter.dim() > 1 and float(parameter.detach().abs().max()) < 1e-4:
                    nn.init.normal_(parameter, std=0.1)
        return model

    def inputs(self, batch: int) -> Tensor:
        """Return random examples, the same ones each time."""
        generator = torch.Generator().manual_seed(1)
        if self.tokens:
            size = (batch, *self.shape)
            return torch.randint(1, models.VOCABULARY, size, generator=generator)
        return torch.randn(batch, *self.shape, generator=generator)


# torchvision's name -> the side of the images and what its factory needs.
VISION: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "resnet18": (64, {}),
    "resnet50": (64, {}),
    "vgg16_bn": (32, {}),
    "mobilenet_v2": (64, {}),
    "mobilenet_v3_small": (64, {}),
    "efficientnet_b0": (64, {}),
    "densenet121": (64, {}),
    "convnext_tiny": (64, {}),
    "regnet_y_400mf": (64, {}),
    "shufflenet_v2_x1_0": (64, {}),
    "googlenet": (64, {"aux_logits": False, "init_weights": False}),
    "squeezenet1_1": (64, {}),
    "vit_b_16": (64, {"image_size": 64}),
    "swin_t": (64, {}),
}

_IMAGE, _SMALL_IMAGE, _GREY = (3, 32, 32), (3, 16, 16), (1, 28, 28)
_TEXT = (12,)

HAND_WRITTEN: Mapping[str, Entry] = {
    "cifar_resnet34": Entry(
        partial(build_model, "resnet34", _IMAGE, models.CLASSES, seed=0), _IMAGE
    ),
    "mlp": Entry(models.Mlp, _GREY),
    "lstm": Entry(partial(models.Recurrent, nn.LSTM), _TEXT, tokens=True),
    "lstm_stacked_bidirectional": Entry(
        partial(models.Recurrent, nn.LSTM, num_layers=2, bidirectional=True),
        _TEXT,
        tokens=True,
    ),
    "gru": Entry(partial(models.Recurrent, nn.GRU), _TEXT, tokens=True),
    "rnn": Entry(partial(models.Recurrent, nn.RNN), _TEXT, tokens=True),
    "lstm_cell": Entry(models.RecurrentCell, _TEXT, tokens=True),
    "transformer_encoder": Entry(models.TransformerClassifier, _TEXT, tokens=True),
    "transformer_post_norm": Entry(models.SequencePositions, _TEXT, tokens=True),
    "small_vit": Entry(models.SmallVit, _IMAGE),
    "mlp_mixer": Entry(models.Mixer, _IMAGE),
    "gpt_tied": Entry(models.Decoder, _TEXT, tokens=True),
    "rms_norm_gqa": Entry(models.RecentDecoder, _TEXT, tokens=True),
    "unet": Entry(models.UNet, _IMAGE),
    "group_norm_cnn": Entry(models.GroupNormCnn, _SMALL_IMAGE),
    "grouped_conv": Entry(models.GroupedConv, _SMALL_IMAGE),
    "se_net": Entry(models.SeNet, _SMALL_IMAGE),
    "glu": Entry(models.GatedMlp, (16, 32)),
    "channel_shuffle": Entry(models.ChannelShuffle, _SMALL_IMAGE),
    "conv1d": Entry(models.Conv1dNet, (16, 32)),
    "conv3d": Entry(models.Conv3dNet, (1, 8, 8, 8)),
    "bag_of_words": Entry(models.BagOfWords, _TEXT, tokens=True),
    "weight_tied": Entry(models.WeightTied, _GREY),
    "data_dependent": Entry(models.DataDependent, _GREY),
}


def vision_entry(vision: ModuleType, name: str) -> Entry:
    """Return one of torchvision's models.

    Parameters
    ----------
    vision : module
        ``torchvision.models``.
    name : str
        A key of `VISION`.
    """
    side, options = VISION[name]
    build = partial(getattr(vision, name), num_classes=models.CLASSES, **options)
    return Entry(build, (3, side, side))
