"""What random modules are made of: one small class a piece.

A piece takes ``(batch, ..., width)`` and returns another last dim, its `width`.
"""

import math
import random

import torch
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["ANYWHERE", "BRANCHING", "SEQUENCE", "Piece"]

ACTIVATIONS = [nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU, nn.Sigmoid, nn.LeakyReLU]


class Piece(nn.Module):
    """A piece of a random module.

    Attributes
    ----------
    width : int
        The last dim of what it returns.
    plain : bool
        Whether nearly all of its units may be dropped, in any order.
    """

    plain: bool = True

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__()
        self.rng = random.Random(rng.random())
        self.width = width

    def other_width(self) -> int:
        """Return a random width."""
        return self.rng.choice([6, 8, 12])


class Dense(Piece):
    """A layer, an activation, dropout."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.width = self.other_width()
        self.layer = nn.Linear(width, self.width, bias=self.rng.random() < 0.7)
        self.activation = self.rng.choice(ACTIVATIONS)()
        self.dropout = nn.Dropout(self.rng.choice([0.0, 0.3]))

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.activation(self.layer(x)))


class Residual(Piece):
    """Two layers beside the stream."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        hidden = self.other_width()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.norm = self.rng.choice([nn.Identity, nn.LayerNorm, nn.RMSNorm])(width)
        self.plain = isinstance(self.norm, nn.Identity)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.relu(self.up(self.norm(x))))


class LastNorm(Piece):
    """Normalise over the width."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.norm = self.rng.choice([nn.LayerNorm, nn.RMSNorm])(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


class ChannelNorm(Piece):
    """Batch or group normalisation; the width is the second dim meanwhile."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.norm = self.rng.choice(
            [nn.BatchNorm1d(width), nn.GroupNorm(2, width), nn.GroupNorm(width, width)]
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2:
            return self.norm(x)
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class SideBySide(Piece):
    """The stream and a layer's output in one tensor."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        more = self.other_width()
        self.layer = nn.Linear(width, more)
        self.width = width + more

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, F.relu(self.layer(x))], -1)


class Gate(Piece):
    """One half opens the other."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.width = self.other_width()
        self.both = nn.Linear(width, 2 * self.width)
        self.by_hand = self.rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        if not self.by_hand:
            return F.glu(self.both(x), -1)
        gate, value = self.both(x).chunk(2, -1)
        return torch.sigmoid(gate) * value


class Heads(Piece):
    """The width as heads, each scaled by its own number, and back again."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, 12)
        self.width, self.heads = 12, self.rng.choice([2, 3, 4])
        self.scale = nn.Parameter(torch.randn(self.heads, 1))
        self.by_count = self.rng.random() < 0.5
        self.plain = not self.by_count

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        sizes = (self.heads, -1) if self.by_count else (-1, 12 // self.heads)
        return (x.unflatten(-1, sizes) * self.scale).flatten(-2)


class Shuffle(Piece):
    """Positions change places, as in a channel shuffle."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer, self.width = nn.Linear(width, 12), 12

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        return x.view(*x.shape[:-1], 3, -1).transpose(-1, -2).reshape(x.shape)


class Slices(Piece):
    """The first part goes through a layer, the rest past it."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.first = self.rng.randrange(2, width - 1)
        self.layer = nn.Linear(self.first, self.first)
        self.in_place = self.rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        part = self.layer(x[..., : self.first])
        if self.in_place:
            x = x.clone()
            x[..., : self.first] = part
            return x
        return torch.cat([part, x[..., self.first :]], -1)


class Tied(Piece):
    """A layer and back through its own weights; or the same layer twice."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.twice = self.rng.random() < 0.5
        self.layer = nn.Linear(width, width if self.twice else self.other_width())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.layer(x))
        if self.twice:
            return torch.tanh(self.layer(hidden))
        return F.linear(hidden, self.layer.weight.t())


class Unused(Piece):
    """A layer with a neighbour that is never used, and a scale."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.used, self.unused = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.used(x) * self.scale


class Constant(Piece):
    """A constant as wide as the stream: an attribute, a buffer or made on the spot."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.kind = self.rng.choice(["attribute", "buffer", "made"])
        values = torch.linspace(0.5, 1.5, width)
        if self.kind == "buffer":
            self.register_buffer("constant", values, persistent=rng.random() < 0.5)
        else:
            self.constant = values

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "made":
            return x * torch.arange(1, self.width + 1).to(x.dtype)
        return x + self.constant.to(x.dtype)


class StaleWidth(Piece):
    """A width that is read from an attribute, not from the tensor."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, width)
        self.use = self.rng.choice(
            [
                "divide",
                "view",
                "split",
                "compare",
                "features",
                "root",
                "norm",
                "forgive",
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.use == "divide":
            return x - x.sum(-1, keepdim=True) / self.width
        if self.use == "view":
            return torch.relu(x).reshape(-1, self.width).view(x.shape)
        if self.use == "split":
            sizes = [2, self.width - 2]
            return torch.cat(x.split(sizes, -1)[::-1], -1)
        if self.use == "features":
            return x / self.layer.out_features
        if self.use == "root":
            return x * x.shape[-1] ** -0.5
        if self.use == "norm":
            return F.layer_norm(x, x.shape[-1:])
        if self.use == "forgive":
            try:
                return x + torch.ones(self.width)
            except RuntimeError:
                return x
        return x * 2 if x.shape[-1] == self.width else x


class Cached(Piece):
    """Positions that are made at the first pass, and again for longer sequences."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, width)
        self.cache = torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        x, length = self.layer(x), x.shape[1] if x.dim() == 3 else 1
        if len(self.cache) < length:
            steps = torch.arange(length)[:, None] + torch.arange(x.shape[-1])
            self.cache = steps.sin()
        return x + self.cache[:length].to(x.dtype)


class Alike(Piece):
    """A shape that is read from another tensor, whose units are others."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.one, self.other = nn.Linear(width, width), nn.Linear(width, width)
        self.last = nn.Linear(width, width)
        self.use = self.rng.choice(["view", "reshape", "zeros", "narrow", "new"])

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.one(x))
        other = F.relu(self.other(x))
        if self.use == "view":
            other = other.view_as(x)
        elif self.use == "reshape":
            other = other.reshape(x.shape)
        elif self.use == "zeros":
            other = other + torch.zeros_like(x)
        elif self.use == "narrow":
            other = other[..., : x.shape[-1]]
        else:
            other = other + x.new_ones(x.shape[-1])
        return x + self.last(other)


class Noise(Piece):
    """Random numbers in training: noise, or a depth that varies."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer, self.deep = nn.Linear(width, width), self.rng.random() < 0.5
        self.plain = self.deep

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x + self.layer(x)
        if self.deep:
            there = torch.rand(len(x), *[1] * (x.dim() - 1)) < 0.8
            return x + self.layer(x) * there
        return x + self.layer(x) + 0.1 * torch.randn_like(x)


class Token(Piece):
    """A learnt vector before all steps, expanded to the batch."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.layer = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1)
        return F.relu(self.layer(x))


class Across(Piece):
    """All units of the width at once: none of them can go."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, width)
        self.way = self.rng.choice([*ACROSS])

    def forward(self, x: Tensor) -> Tensor:
        return ACROSS[self.way](self.layer(x))


ACROSS = {
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(-1),
    "flip": lambda x: x.flip(-1),
    "roll": lambda x: x.roll(1, -1),
    "sort": lambda x: x.sort(-1).values,
    "centre": lambda x: x - x.mean(-1, keepdim=True),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "largest": lambda x: x - x.amax(-1, keepdim=True),
    "norm": lambda x: x / (1 + x.norm(dim=-1, keepdim=True)),
    "std": lambda x: x / (1 + x.std(-1, keepdim=True)),
    "topk": lambda x: x * (x >= x.topk(3, -1).values[..., -1:]),
    "diff": lambda x: F.pad(x.diff(dim=-1), (1, 0)),
    "argmax": lambda x: x * (1 + x.argmax(-1, keepdim=True)),
    "any": lambda x: torch.where((x > 1).any(-1, keepdim=True), 2 * x, x),
}


class Tiny(Piece):
    """What all units do together hardly shows: weights, or a factor, of 1e-9."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer, self.way = nn.Linear(width, width), self.rng.choice([*ACROSS])
        self.factor = self.rng.choice([1.0, 1e-9])
        if self.factor == 1.0:
            with torch.no_grad():
                self.layer.weight.mul_(1e-9)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.factor * self.layer(ACROSS[self.way](x))


class TinyLayer(Piece):
    """A layer whose weights are 1e-9, scaled up again."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.width = self.other_width()
        self.layer = nn.Linear(width, self.width)
        with torch.no_grad():
            self.layer.weight.mul_(1e-9)
            self.layer.bias.mul_(1e-9)

    def forward(self, x: Tensor) -> Tensor:
        return 1e9 * self.layer(x)


class Masked(Piece):
    """Units that are filled with something huge or infinite, and a softmax."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, width)
        self.fill = self.rng.choice([-1e9, -math.inf, torch.finfo(torch.float32).min])
        self.by_value = self.rng.random() < 0.5
        self.softmax = self.rng.random() < 0.7

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        mask = x < -0.5 if self.by_value else torch.arange(x.shape[-1]) % 3 == 1
        filled = x.masked_fill(mask, self.fill)
        return filled.softmax(-1) if self.softmax else filled.clamp(min=-1)


class Average(Piece):
    """A buffer that follows the mean of each unit in training."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, width)
        self.register_buffer("average", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.training:
            seen = x.detach().flatten(0, -2).mean(0)
            self.average.mul_(0.9).add_(0.1 * seen)
        return (x - self.average) * 2


class Repeat(Piece):
    """Each unit several times, or the whole stream."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.width, self.each = 2 * width, self.rng.random() < 0.5

    def forward(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(2, -1) if self.each else torch.cat([x, x], -1)


class Bilinear(Piece):
    """Features by features: a matrix, flattened."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.one, self.other = nn.Linear(width, 3), nn.Linear(width, 4)
        self.width = 12

    def forward(self, x: Tensor) -> Tensor:
        return (self.one(x)[..., :, None] * self.other(x)[..., None, :]).flatten(-2)


class Chosen(Piece):
    """One of two layers' outputs, element by element."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.width = self.other_width()
        self.one, self.other = (nn.Linear(width, self.width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        one, other = self.one(x), self.other(x)
        return torch.where(one > 0, one, torch.maximum(one, other))


class Attention(Piece):
    """Self-attention over the second dim: torch's module, or by hand."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.stem, self.width = nn.Linear(width, 12), 12
        self.stock = self.rng.random() < 0.4
        self.fill = self.rng.choice([None, -1e9, -math.inf])
        self.stale = self.rng.random() < 0.3
        self.plain = self.stock or not self.stale
        if self.stock:
            self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        else:
            self.qkv, self.out = nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.stock:
            return x + self.attention(x, x, x, need_weights=False)[0]
        heads = (3, 4) if self.stale else (-1, 4)
        q, k, v = (
            part.unflatten(-1, heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / 2
        if self.fill is not None:
            later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, self.fill)
        return x + self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Recurrent(Piece):
    """Recurrent layers."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        kind, hidden = self.rng.choice([nn.LSTM, nn.GRU, nn.RNN]), self.other_width()
        both = self.rng.random() < 0.3
        self.layer = kind(width, hidden, batch_first=True, bidirectional=both)
        self.width = (1 + both) * hidden

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class Convolution(Piece):
    """A convolution along the second dim, depthwise or grouped or not."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.first = nn.Conv1d(width, 12, 3, padding=1)
        groups = self.rng.choice([1, 3, 12])
        self.second = nn.Conv1d(12, 12, 3, padding=1, groups=groups)
        self.norm, self.width = nn.BatchNorm1d(12), 12

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.first(x.transpose(1, 2))))
        return self.second(x).transpose(1, 2)


class Excite(Piece):
    """Each unit is scaled by what all units say on average."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.squeeze, self.excite = nn.Linear(width, 4), nn.Linear(4, width)

    def forward(self, x: Tensor) -> Tensor:
        scale = self.excite(F.relu(self.squeeze(x.mean(1, keepdim=True))))
        return x * torch.sigmoid(scale)


class Branch(Piece):
    """Two paths; the rarer one takes all units at once."""

    plain = False

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.layer = nn.Linear(width, width)
        self.way = self.rng.choice([*ACROSS])
        self.turned = self.rng.random() < 0.5

    def other_path(self, x: Tensor) -> bool:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if self.other_path(x) != self.turned:
            return ACROSS[self.way](x)
        return F.relu(x)


class ValueBranch(Branch):
    """The path depends on the data, however it is read."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.reading = self.rng.choice([*READINGS])
        self.bar = self.rng.choice([0.0, 0.5, 1.0])

    def other_path(self, x: Tensor) -> bool:
        return READINGS[self.reading](x.detach(), self.bar)


READINGS = {
    "bool": lambda x, bar: bool(x.mean() > bar),
    "any": lambda x, bar: bool((x > bar + 1).any()),
    "item": lambda x, bar: x.amax().item() > bar + 1,
    "float": lambda x, bar: float(x.std()) > bar + 0.3,
    "int": lambda x, bar: int((x > bar).sum()) % 2 == 0,
    "tolist": lambda x, bar: x.flatten().tolist()[0] > bar,
    "numpy": lambda x, bar: x.cpu().numpy().max() > bar + 1,
    "nonzero": lambda x, bar: (x > bar + 1).nonzero().numel() > 0,
    "mask": lambda x, bar: x[x > bar + 1].shape[0] > 0,
    "masked_select": lambda x, bar: len(x.masked_select(x > bar + 1)) > 1,
    "equal": lambda x, bar: torch.equal(x > bar, x > bar + 1),
    "allclose": lambda x, bar: torch.allclose(x, x.clamp(max=bar + 1)),
    "unique": lambda x, bar: len(torch.unique(x > bar + 1)) > 1,
    "argmax": lambda x, bar: x.flatten().argmax().item() % 2 == 1,
    "format": lambda x, bar: f"{x.mean():.3f}".startswith("-"),
    "index": lambda x, bar: [False, True][(x.mean() > bar).long()],
    "where": lambda x, bar: len(torch.where(x > bar + 1)[0]) > 0,
    "argwhere": lambda x, bar: x.argwhere().shape[0] % 2 == 1,
    "contains": lambda x, bar: bool(x.sign().eq(1).all()),
    "norm": lambda x, bar: x.norm() > 2 * bar,
    "isnan": lambda x, bar: not bool(torch.isfinite(1 / (x > bar + 1).sum())),
}


class WeightBranch(Branch):
    """The path depends on the weights, which differ in a submodel."""

    def other_path(self, x: Tensor) -> bool:
        return bool(self.layer.weight.mean() > 0)


class ShapeBranch(Branch):
    """The path depends on how many examples, or steps, there are."""

    def __init__(self, rng: random.Random, width: int) -> None:
        super().__init__(rng, width)
        self.question = self.rng.choice(["several", "odd", "long"])

    def other_path(self, x: Tensor) -> bool:
        if self.question == "several":
            return x.size(0) > 1
        if self.question == "odd":
            return len(x) % 2 == 1
        return x.shape[1] > 6


class ModeBranch(Branch):
    """The path depends on the mode."""

    def other_path(self, x: Tensor) -> bool:
        return self.training


ANYWHERE: list[type[Piece]] = [
    Across,
    Alike,
    Average,
    Bilinear,
    Cached,
    ChannelNorm,
    Chosen,
    Constant,
    Dense,
    Dense,
    Dense,
    Gate,
    Heads,
    LastNorm,
    Masked,
    Noise,
    Repeat,
    Residual,
    Residual,
    Shuffle,
    SideBySide,
    Slices,
    StaleWidth,
    Tied,
    Tiny,
    TinyLayer,
    Unused,
]
SEQUENCE: list[type[Piece]] = [
    Attention,
    Attention,
    Convolution,
    Excite,
    Recurrent,
    Token,
]
BRANCHING: list[type[Piece]] = [
    ModeBranch,
    ShapeBranch,
    ValueBranch,
    ValueBranch,
    WeightBranch,
]
