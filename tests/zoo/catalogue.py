"""The model zoo: all entries by name."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.utils.weight_norm import weight_norm as old_weight_norm

from flwr_asyncdrop.app.models import build_model
from tests.zoo import models, pictures, sequences, structures
from tests.zoo.entries import Draw, Drawer, Entry
from tests.zoo.hugging_face import HUGGING_FACE
from tests.zoo.passes import Arguments
from tests.zoo.vision import VISION

__all__ = ["HAND_WRITTEN", "HUGGING_FACE", "VISION", "ZOO"]


def reals(*shape: int) -> Drawer:
    """Return a drawer of real numbers."""
    return lambda draw: draw.reals(*shape)


def series(length: int, width: int) -> Drawer:
    """Return a drawer of series of vectors."""
    return lambda draw: draw.reals(length + draw.longer, width)


def text(draw: Draw) -> Tensor:
    """Return token numbers."""
    return draw.tokens(models.VOCABULARY, 12)


def lengths(draw: Draw) -> Arguments:
    """Return texts with their lengths, one of them in full."""
    tokens = text(draw)
    counts = draw.whole(2, tokens.shape[1] + 1)
    counts[0] = tokens.shape[1]
    return Arguments((tokens, counts))


def two_texts(draw: Draw) -> Arguments:
    """Return a text and what was said so far."""
    return Arguments((text(draw), draw.tokens(models.VOCABULARY, 5)))


def graph(draw: Draw) -> Arguments:
    """Return nodes' features and edges."""
    nodes = 6 * draw.batch + draw.longer
    edges = torch.randint(0, nodes, (2, 3 * nodes), generator=draw.generator)
    return Arguments((torch.randn(nodes, 8, generator=draw.generator), edges))


def several(*shapes: tuple[int, ...]) -> Drawer:
    """Return a drawer of several arguments of real numbers."""
    return lambda draw: Arguments(tuple(draw.reals(*shape) for shape in shapes))


def members(draw: Draw) -> Arguments:
    """Return sets with a mask of who is there."""
    count = 7 + draw.longer
    return Arguments((draw.reals(count, 6), draw.whole(0, 4, count) > 0))


def conditioned(draw: Draw) -> Arguments:
    """Return images with a class."""
    return Arguments((draw.reals(3, 16, 16), draw.whole(0, 10)))


def diffused(draw: Draw) -> Arguments:
    """Return noisy images with the time."""
    return Arguments((draw.reals(3, 16, 16), draw.reals().abs() * 100))


def row(draw: Draw) -> Arguments:
    """Return a table's rows."""
    return Arguments((draw.reals(5), draw.whole(0, 10, 3)))


def click(draw: Draw) -> Arguments:
    """Return numbers, and three bags of words."""
    return Arguments((draw.reals(5), draw.whole(0, 20, 3, 2)))


def pair(draw: Draw) -> Arguments:
    """Return user and item, by keyword."""
    return Arguments(kwargs={"user": draw.whole(0, 50), "item": draw.whole(0, 80)})


_IMAGE, _SMALL_IMAGE, _GREY = (3, 32, 32), (3, 16, 16), (1, 28, 28)

_FIRST: Mapping[str, Entry] = {
    "cifar_resnet34": Entry(
        partial(build_model, "resnet34", _IMAGE, models.CLASSES, seed=0),
        reals(*_IMAGE),
        large=True,
    ),
    "cifar_resnet18": Entry(
        partial(build_model, "resnet18", _IMAGE, models.CLASSES, seed=0),
        reals(*_IMAGE),
        large=True,
    ),
    "mlp": Entry(models.Mlp, reals(*_GREY)),
    "lstm": Entry(partial(models.Recurrent, nn.LSTM), text),
    "lstm_stacked_bidirectional": Entry(
        partial(models.Recurrent, nn.LSTM, num_layers=2, bidirectional=True),
        text,
        large=True,
    ),
    "gru": Entry(partial(models.Recurrent, nn.GRU), text),
    "rnn": Entry(partial(models.Recurrent, nn.RNN), text),
    "lstm_cell": Entry(models.RecurrentCell, text, large=True),
    "transformer_encoder": Entry(models.TransformerClassifier, text),
    "transformer_post_norm": Entry(models.SequencePositions, text),
    "small_vit": Entry(models.SmallVit, reals(*_IMAGE)),
    "mlp_mixer": Entry(models.Mixer, reals(*_IMAGE)),
    "gpt_tied": Entry(models.Decoder, text),
    "rms_norm_gqa": Entry(models.RecentDecoder, text),
    "unet": Entry(models.UNet, reals(*_IMAGE)),
    "group_norm_cnn": Entry(models.GroupNormCnn, reals(*_SMALL_IMAGE)),
    "grouped_conv": Entry(models.GroupedConv, reals(*_SMALL_IMAGE)),
    "se_net": Entry(models.SeNet, reals(*_SMALL_IMAGE)),
    "glu": Entry(models.GatedMlp, reals(16, 32)),
    "channel_shuffle": Entry(models.ChannelShuffle, reals(*_SMALL_IMAGE)),
    "conv1d": Entry(models.Conv1dNet, reals(16, 32)),
    "conv3d": Entry(models.Conv3dNet, reals(1, 8, 8, 8)),
    "bag_of_words": Entry(models.BagOfWords, text),
    "weight_tied": Entry(models.WeightTied, reals(*_GREY)),
    "data_dependent": Entry(models.DataDependent, reals(*_GREY)),
}

_SEQUENCES: Mapping[str, Entry] = {
    "packed_gru": Entry(sequences.Packed, lengths),
    "lstm_projected": Entry(sequences.Projected, text, large=True),
    "gru_translator": Entry(sequences.Translator, two_texts, large=True),
    "seq2seq_transformer": Entry(sequences.Seq2Seq, two_texts),
    "einsum_attention": Entry(sequences.EinsumAttention, series(6, 32)),
    "masked_attention": Entry(sequences.MaskedAttention, text),
    "linear_attention": Entry(sequences.LinearAttention, series(6, 8)),
    "tcn_weight_norm": Entry(sequences.TemporalConv, reals(4, 20)),
    "tcn_old_weight_norm": Entry(
        partial(sequences.TemporalConv, old_weight_norm), reals(4, 20)
    ),
    "conformer": Entry(sequences.Conformer, series(10, 8)),
    "highway": Entry(sequences.Highway, reals(20)),
    "forecaster": Entry(sequences.Forecaster, series(8, 3), large=True),
    "liquid_cell": Entry(sequences.LiquidCell, series(5, 3)),
    "world_model": Entry(sequences.WorldModel, several((3, 5), (3, 3)), large=True),
}

_PICTURES: Mapping[str, Entry] = {
    "vae": Entry(pictures.VariationalAutoencoder, reals(*_GREY)),
    "gan_generator": Entry(pictures.Generator, reals(8, 1, 1)),
    "gan_spectral_norm": Entry(pictures.Discriminator, reals(*_SMALL_IMAGE)),
    "gan_old_spectral_norm": Entry(pictures.OldDiscriminator, reals(*_SMALL_IMAGE)),
    "super_resolution": Entry(pictures.SuperResolution, reals(*_SMALL_IMAGE)),
    "diffusion_unet": Entry(pictures.Diffusion, diffused),
    "diffusion_transformer": Entry(pictures.PatchTransformer, conditioned),
    "cbam": Entry(pictures.Cbam, reals(*_SMALL_IMAGE)),
    "nerf": Entry(pictures.Radiance, several((3,), (3,))),
    "flow": Entry(pictures.Flow, reals(6)),
}

_STRUCTURES: Mapping[str, Entry] = {
    "graph_conv": Entry(structures.GraphConv, graph),
    "sparse_graph_conv": Entry(structures.SparseGraphConv, graph),
    "graph_attention": Entry(structures.GraphAttention, graph),
    "fourier_operator": Entry(structures.FourierOperator, series(20, 2)),
    "soft_mixture": Entry(structures.Mixture, reals(20)),
    "chosen_expert": Entry(structures.ChosenExpert, reals(20)),
    "hypernetwork": Entry(structures.HyperNetwork, several((10,), (6,))),
    "siamese": Entry(structures.Siamese, several((20,), (20,))),
    "bilinear": Entry(structures.Bilinear, several((10,), (12,))),
    "deep_sets": Entry(structures.DeepSets, members),
    "point_net": Entry(
        structures.PointNet, lambda draw: draw.reals(3, 16 + draw.longer)
    ),
    "recommender": Entry(structures.Recommender, pair),
    "sparse_interactions": Entry(structures.Interactions, click),
    "tabular": Entry(structures.Tabular, row),
    "memory": Entry(structures.Memory, text),
    "shape_branch": Entry(structures.ShapeBranch, reals(20)),
    "mode_branch": Entry(structures.ModeBranch, reals(20)),
    "value_branch": Entry(structures.ValueBranch, reals(20)),
}

HAND_WRITTEN: Mapping[str, Entry] = {**_FIRST, **_SEQUENCES, **_PICTURES, **_STRUCTURES}

ZOO: Mapping[str, Entry] = {**HAND_WRITTEN, **VISION, **HUGGING_FACE}
