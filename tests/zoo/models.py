"""Small models of the kinds that people train, written by hand as people write them.

Widths are large enough for a step time to mean something, small enough for a test.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY = 500
CLASSES = 10


class Mlp(nn.Sequential):
    """Flattened images, two hidden layers, batch normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(784, 512),
            nn.BatchNorm1d(512),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Linear(512, 256),
            nn.GELU(),
            nn.Linear(256, CLASSES),
        )


class Recurrent(nn.Module):
    """A text classifier: embedding, recurrent layers, a head on the last step."""

    def __init__(self, kind: type[nn.RNNBase], hidden: int = 128, **options) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.dropout = nn.Dropout(0.1)
        self.rnn = kind(64, hidden, batch_first=True, **options)
        directions = 2 if options.get("bidirectional") else 1
        self.head = nn.Linear(directions * hidden, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.rnn(self.dropout(self.embedding(tokens)))
        return self.head(outputs[:, -1])


class RecurrentCell(nn.Module):
    """A character model that steps a cell by hand, from zeros."""

    def __init__(self, hidden: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 48)
        self.cell = nn.LSTMCell(48, hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        state = None
        for step in self.embedding(tokens).unbind(1):
            state = self.cell(step, state)
        return self.head(state[0])


class TransformerClassifier(nn.Module):
    """`nn.TransformerEncoder` on embedded tokens with learnt positions and padding."""

    def __init__(self, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width, padding_idx=0)
        self.positions = nn.Parameter(torch.randn(1, 64, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.positions[:, : tokens.shape[1]]
        x = self.encoder(x, src_key_padding_mask=tokens == 0)
        return self.head(x.mean(1))


class Attention(nn.Module):
    """Multi-head self-attention; the heads follow from the weights, not a constant."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.head_width = width // heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(2))


class TransformerBlock(nn.Module):
    """Attention and a feed-forward layer, each normalised first, on a stream."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        causal: bool = False,
        norm: type[nn.Module] = nn.LayerNorm,
    ) -> None:
        super().__init__()
        self.norm1 = norm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.norm2 = norm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class SmallVit(nn.Module):
    """A vision Transformer with a class token, attention by hand."""

    def __init__(self, width: int = 96, depth: int = 2) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.blocks = nn.Sequential(*(TransformerBlock(width, 6) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


class Decoder(nn.Module):
    """A GPT-like decoder whose output layer is its embedding."""

    def __init__(self, width: int = 96, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(64, width)
        self.blocks = nn.ModuleList(
            TransformerBlock(width, 6, causal=True) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class GroupedQueryAttention(nn.Module):
    """Rotary positions; several query heads share one head of keys and values."""

    def __init__(self, width: int, head_width: int, sharing: int) -> None:
        super().__init__()
        self.head_width = head_width
        self.sharing = sharing
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width // sharing, bias=False)
        self.value = nn.Linear(width, width // sharing, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        rates = 1e4 ** -(torch.arange(0, 1, 2 / self.head_width, device=x.device))
        angles = torch.outer(torch.arange(x.shape[1], device=x.device), rates)
        angles = angles.repeat(1, 2).to(x.dtype)
        query, key = self.turn(query, angles), self.turn(key, angles)
        key, value = self.share(key), self.share(value)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    @staticmethod
    def turn(heads: Tensor, angles: Tensor) -> Tensor:
        first, second = heads.chunk(2, -1)
        return heads * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def share(self, heads: Tensor) -> Tensor:
        repeated = heads[:, :, None].expand(-1, -1, self.sharing, -1, -1)
        return repeated.flatten(1, 2)


class RecentDecoder(nn.Module):
    """RMSNorm, grouped-query attention, SwiGLU: a block of recent language models."""

    def __init__(self, width: int = 96, hidden: int = 256) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.norm1 = nn.RMSNorm(width)
        self.attention = GroupedQueryAttention(width, 16, 2)
        self.norm2 = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.attention(self.norm1(x))
        inner = self.norm2(x)
        x = x + self.down(F.silu(self.gate(inner)) * self.up(inner))
        return self.head(x.mean(1))


class MixerBlock(nn.Module):
    """Mix patches, then channels, each by an MLP on a residual stream."""

    def __init__(self, patches: int, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.across = nn.Sequential(
            nn.Linear(patches, 64), nn.GELU(), nn.Linear(64, patches)
        )
        self.norm2 = nn.LayerNorm(width)
        self.within = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.blocks = nn.Sequential(*(MixerBlock(16, width) for _ in range(2)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.norm(self.blocks(x)).mean(1))


def double_conv(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Segmentation: down, up by transposed convolutions, skips put side by side."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.down1 = double_conv(3, width)
        self.down2 = double_conv(width, 2 * width)
        self.bottom = double_conv(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.join2 = double_conv(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = double_conv(2 * width, width)
        self.out = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.join2(torch.cat([second, self.up2(x)], 1))
        return self.out(self.join1(torch.cat([first, self.up1(x)], 1)))


class GroupNormCnn(nn.Sequential):
    """Group normalisation, as federated learning likes it."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3, padding=1),
            nn.GroupNorm(8, 32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.GroupNorm(8, 64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(256, CLASSES),
        )


class GroupedBlock(nn.Module):
    """ResNeXt's bottleneck: a grouped convolution between two pointwise ones."""

    def __init__(self, width: int, inner: int, groups: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(width, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv = nn.Conv2d(inner, inner, 3, padding=1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.expand = nn.Conv2d(inner, width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.reduce(x)))
        out = self.bn3(self.expand(F.relu(self.bn2(self.conv(out)))))
        return F.relu(x + out)


class GroupedConv(nn.Sequential):
    """Grouped convolutions in residual blocks."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 64, 3, stride=2, padding=1),
            GroupedBlock(64, 64, 16),
            GroupedBlock(64, 64, 16),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )


class SqueezeExcite(nn.Module):
    """Scale each channel by what all of them say together."""

    def __init__(self, width: int, reduced: int) -> None:
        super().__init__()
        self.squeeze = nn.Linear(width, reduced)
        self.excite = nn.Linear(reduced, width)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.excite(F.relu(self.squeeze(x.mean((2, 3)))))
        return x * torch.sigmoid(scale)[:, :, None, None]


class SeNet(nn.Sequential):
    """Convolutions with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            SqueezeExcite(32, 8),
            nn.Conv2d(32, 64, 3, stride=2, padding=1),
            nn.BatchNorm2d(64),
            nn.PReLU(64),
            SqueezeExcite(64, 16),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(64, CLASSES),
        )


class GatedMlp(nn.Sequential):
    """Gated linear units, over features and over channels."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(16, 128, 3, padding=1),
            nn.GLU(1),
            nn.Flatten(),
            nn.Linear(64 * 32, 256),
            nn.GLU(-1),
            nn.Linear(128, CLASSES),
        )


class ChannelShuffle(nn.Module):
    """A shuffle between pointwise and depthwise convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, stride=2, padding=1)
        self.shuffle = nn.ChannelShuffle(4)
        self.depthwise = nn.Conv2d(64, 64, 3, padding=1, groups=64)
        self.pointwise = nn.Conv2d(64, 128, 1)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.shuffle(F.relu(self.stem(x))))
        return self.head(F.relu(self.pointwise(F.relu(x))).mean((2, 3)))


class Conv1dNet(nn.Sequential):
    """Signals, e.g. of a sensor."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv1d(16, 64, 5, padding=2),
            nn.BatchNorm1d(64),
            nn.ELU(),
            nn.MaxPool1d(2),
            nn.Conv1d(64, 128, 5, padding=2, dilation=1),
            nn.InstanceNorm1d(128, affine=True),
            nn.LeakyReLU(),
            nn.AdaptiveAvgPool1d(4),
            nn.Flatten(),
            nn.Linear(512, CLASSES),
        )


class Conv3dNet(nn.Sequential):
    """Volumes, e.g. a CT scan."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv3d(1, 16, 3, padding=1),
            nn.BatchNorm3d(16),
            nn.ReLU(),
            nn.MaxPool3d(2),
            nn.Conv3d(16, 32, 3, padding=1),
            nn.SiLU(),
            nn.AvgPool3d(2),
            nn.Flatten(),
            nn.Linear(32 * 8, CLASSES),
        )


class BagOfWords(nn.Module):
    """The mean embedding of a text and a hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(VOCABULARY, 64)
        self.hidden = nn.Linear(64, 128)
        self.head = nn.Linear(128, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(F.relu(self.hidden(self.bag(tokens))))


class WeightTied(nn.Module):
    """An autoencoder whose decoder is its encoder, transposed; a layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(784, 256)
        self.mix = nn.Linear(256, 256)
        self.bias = nn.Parameter(torch.zeros(784))

    def forward(self, x: Tensor) -> Tensor:
        code = torch.tanh(self.encode(x.flatten(1)))
        code = torch.tanh(self.mix(torch.tanh(self.mix(code))))
        return F.linear(code, self.encode.weight.t(), self.bias)


class DataDependent(nn.Module):
    """A safe beginning, then a branch that depends on the values."""

    def __init__(self) -> None:
        super().__init__()
        self.safe = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 64))
        self.calm = nn.Sequential(nn.Linear(64, 128), nn.ReLU())
        self.wild = nn.Sequential(nn.Linear(64, 128), nn.Tanh())
        self.head = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.safe(x.flatten(1))
        branch = self.calm if float(x.detach().abs().mean()) < 1 else self.wild
        return self.head(branch(x))


class SequencePositions(nn.Module):
    """A Transformer encoder with fixed sinusoidal positions, post-norm."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        steps = torch.arange(64)[:, None] * torch.exp(
            torch.arange(0, width, 2) * (-math.log(10000.0) / width)
        )
        table = torch.stack([steps.sin(), steps.cos()], -1).flatten(1)
        self.register_buffer("table", table)
        self.attention = nn.MultiheadAttention(width, 6, batch_first=True)
        self.norm1 = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 256)
        self.fc2 = nn.Linear(256, width)
        self.norm2 = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.table[: tokens.shape[1]]
        x = self.norm1(x + self.attention(x, x, x, need_weights=False)[0])
        x = self.norm2(x + self.fc2(F.relu(self.fc1(x))))
        return self.head(x[:, 0])
