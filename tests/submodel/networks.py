"""Small networks, one for each way in which units hang together."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ConvFlatten(nn.Module):
    """A convolution whose channels reach a linear layer as 2 x 2 features each."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


class Block(nn.Module):
    """A residual block, with a projection where the width changes."""

    def __init__(self, channels: int, width: int, inner: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, inner, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if channels != width:
            self.shortcut = nn.Conv2d(channels, width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        out += self.shortcut(x)
        return F.relu(out)


class ResidualNet(nn.Module):
    """A stem, blocks and a linear head on pooled features."""

    def __init__(self, widths: list[int], inner: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, widths[0], 3, padding=1)
        pairs = zip([widths[0], *widths], widths, strict=False)
        self.blocks = nn.Sequential(*(Block(a, b, inner) for a, b in pairs))
        self.head = nn.Linear(widths[-1], 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class Recurrent(nn.Module):
    """Embedding, LSTM or GRU, and a head on the last step."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **options: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.rnn = kind(6, 8, batch_first=True, **options)
        self.head = nn.Linear(16 if options.get("bidirectional") else 8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0][:, -1])


class SeparableConv(nn.Module):
    """Depthwise and pointwise convolutions, group normalisation, grouped channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.depthwise = nn.Conv2d(8, 8, 3, groups=8, bias=False)
        self.pointwise = nn.Conv2d(8, 12, 1)
        self.norm = nn.GroupNorm(4, 12)
        self.grouped = nn.Conv2d(12, 8, 1, groups=2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu6(self.depthwise(F.hardswish(self.stem(x))))
        x = self.grouped(F.gelu(self.norm(self.pointwise(x))))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class DenseNet(nn.Module):
    """Each layer sees everything before it, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.layer = nn.Conv2d(4, 5, 3, padding=1)
        self.head = nn.Linear(9, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.cat([x, self.layer(F.silu(self.norm(x)))], 1)
        return self.head(x.amax((2, 3)))


class Tied(nn.Module):
    """A language model whose output layer is its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.mix = nn.Linear(8, 8)
        self.decoder = nn.Linear(8, 20, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.decoder(torch.tanh(self.mix(self.embedding(tokens))))


class Encoder(nn.Module):
    """A Transformer encoder: heads and feed-forward units can go."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(
            8, 4, 12, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embedding(tokens)).mean(1))


class Gated(nn.Module):
    """A gated linear unit: halves of one layer belong together in pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(5, 12)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        value, gate = self.both(x).chunk(2, -1)
        return self.head(value * torch.sigmoid(gate))


class Split(nn.Module):
    """Features seen as a grid of 4 rows, of which a submodel has fewer columns."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(5, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.start(x).view(len(x), 4, -1)).flatten(1))


class Upsampling(nn.Module):
    """Transposed convolutions on an unflattened vector, padded and sliced."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(5, 16)
        self.up = nn.ConvTranspose2d(4, 6, 2, stride=2)
        self.norm = nn.InstanceNorm2d(6, affine=True)
        self.out = nn.Conv2d(6, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(self.start(x).view(len(x), -1, 2, 2), (1, 1))
        return self.out(F.relu(self.norm(self.up(x))))[:, :, 1:-1]


def images(channels: int = 3, size: int = 8, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shape = (batch, channels, size, size)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def vectors(features: int = 5, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, features, generator=generator, dtype=torch.float64)


def tokens(length: int = 6, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(20, (batch, length), generator=generator)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build a module from a seed; its normalisation gets statistics that matter."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build().double()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d | nn.GroupNorm | nn.InstanceNorm2d):
                for tensor in module.state_dict().values():
                    if tensor.is_floating_point():
                        tensor.uniform_(0.5, 1.5)
    return model
