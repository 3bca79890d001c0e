"""Small models of sequences: recurrent ones, attention by hand, signals."""

import math

import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from tests.zoo.models import CLASSES, VOCABULARY


class Packed(nn.Module):
    """A recurrent classifier of texts of unequal lengths, packed."""

    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.rnn = nn.GRU(32, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            self.embedding(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        outputs, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        steps = torch.arange(len(tokens))
        return self.head(outputs[steps, lengths - 1])


class Projected(nn.Module):
    """LSTM layers whose outputs are projected to fewer numbers."""

    def __init__(self, hidden: int = 48, projected: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 32)
        self.rnn = nn.LSTM(32, hidden, 2, batch_first=True, proj_size=projected)
        self.head = nn.Linear(projected, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(tokens))[0].mean(1))


class Translator(nn.Module):
    """A GRU encoder and decoder; additive attention from each step to the source."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.source = nn.Embedding(VOCABULARY, width)
        self.target = nn.Embedding(VOCABULARY, width)
        self.encoder = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(2 * width, width)
        self.keys = nn.Linear(2 * width, width, bias=False)
        self.queries = nn.Linear(width, width)
        self.energy = nn.Linear(width, 1, bias=False)
        self.decoder = nn.GRUCell(3 * width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor, said: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(tokens))
        state = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        keys, steps = self.keys(memory), []
        for word in self.target(said).unbind(1):
            energy = self.energy(torch.tanh(keys + self.queries(state)[:, None]))
            context = (energy.softmax(1) * memory).sum(1)
            state = self.decoder(torch.cat([word, context], -1), state)
            steps.append(self.head(state))
        return torch.stack(steps, 1)


class Seq2Seq(nn.Module):
    """`nn.Transformer` with a causal mask."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.transformer = nn.Transformer(width, 4, 1, 1, 48, 0.0, batch_first=True)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor, said: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(said.shape[1])
        hidden = self.transformer(
            self.embedding(tokens), self.embedding(said), tgt_mask=mask
        )
        return self.head(hidden)


class EinsumAttention(nn.Module):
    """Attention of one projection a head, written with einsum."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        shape = (width, heads, width // heads)
        self.query, self.key, self.value = (
            nn.Parameter(torch.randn(shape) / math.sqrt(width)) for _ in range(3)
        )
        self.out = nn.Parameter(torch.randn(heads, width // heads, width) / width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm(x)
        q = torch.einsum("btw,whd->bthd", seen, self.query)
        k = torch.einsum("bsw,whd->bshd", seen, self.key)
        v = torch.einsum("bsw,whd->bshd", seen, self.value)
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
        mixed = torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v)
        return self.head((x + torch.einsum("bthd,hdw->btw", mixed, self.out)).mean(1))


class MaskedAttention(nn.Module):
    """Causal attention; -1e9 stands where nothing may be looked at."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        batch, length, _ = x.shape
        qkv = self.qkv(x).view(batch, length, 3, -1, self.head_width)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.head_width)
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(hidden, -1e9).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, -1))
        logits = self.head(x + self.down(F.relu(self.up(x))))
        return logits.masked_fill(torch.arange(VOCABULARY) < 4, -1e9)


class TemporalBlock(nn.Module):
    """Two dilated causal convolutions with weight normalisation, on a residual."""

    def __init__(self, before: int, width: int, dilation: int, norm) -> None:
        super().__init__()
        self.pad = 2 * dilation
        self.conv1 = norm(nn.Conv1d(before, width, 3, dilation=dilation))
        self.conv2 = norm(nn.Conv1d(width, width, 3, dilation=dilation))
        self.dropout = nn.Dropout(0.2)
        self.down = nn.Conv1d(before, width, 1) if before != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out = self.dropout(F.relu(self.conv1(F.pad(x, (self.pad, 0)))))
        out = self.dropout(F.relu(self.conv2(F.pad(out, (self.pad, 0)))))
        return F.relu(out + self.down(x))


class TemporalConv(nn.Module):
    """A temporal convolutional network."""

    def __init__(self, norm=weight_norm) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            TemporalBlock(4, 16, 1, norm),
            TemporalBlock(16, 16, 2, norm),
            TemporalBlock(16, 24, 4, norm),
        )
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x)[:, :, -1])


class Conformer(nn.Module):
    """A conformer block: half feed-forward, attention, gated convolution."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 64), nn.Linear(64, width)
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.pointwise1 = nn.Conv1d(width, 64, 1)
        self.depthwise = nn.Conv1d(32, 32, 5, padding=2, groups=32)
        self.batch_norm = nn.BatchNorm1d(32)
        self.pointwise2 = nn.Conv1d(32, width, 1)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + 0.5 * self.down(F.silu(self.up(self.norm1(x))))
        seen = self.norm2(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        inner = F.glu(self.pointwise1(self.norm3(x).transpose(1, 2)), 1)
        inner = F.silu(self.batch_norm(self.depthwise(inner)))
        return self.head((x + self.pointwise2(inner).transpose(1, 2)).mean(1))


class Highway(nn.Module):
    """Gates choose between a layer and its input."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.stem = nn.Linear(20, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.gates = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            open_ = torch.sigmoid(gate(x))
            x = open_ * F.relu(layer(x)) + (1 - open_) * x
        return self.head(x)


class Forecaster(nn.Module):
    """An LSTM that predicts mean and spread of a series' next values, step by step."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.rnn = nn.LSTM(3, hidden, 2, dropout=0.1)
        self.mean = nn.Linear(hidden, 1)
        self.spread = nn.Linear(hidden, 1)

    def forward(self, series: Tensor) -> dict[str, Tensor]:
        outputs, _ = self.rnn(series.transpose(0, 1))
        outputs = F.dropout(outputs, 0.0, self.training).transpose(0, 1)
        return {"mean": self.mean(outputs), "spread": F.softplus(self.spread(outputs))}


class LinearAttention(nn.Module):
    """Attention without softmax: keys and values are summed up first."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.head_width = width // heads
        self.stem = nn.Linear(8, width)
        self.query, self.key, self.value, self.out = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = F.elu(q) + 1, F.elu(k) + 1
        mixed = q @ (k.transpose(-1, -2) @ v)
        mixed = mixed / (q * k.sum(-2, keepdim=True)).sum(-1, keepdim=True)
        return self.head((x + self.out(mixed.transpose(1, 2).flatten(2))).mean(1))


class LiquidCell(nn.Module):
    """A cell by hand, whose state decays, and starts from zeros beside the input."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.cell = nn.Linear(3 + width, 2 * width)
        self.rate = nn.Parameter(torch.ones(width))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, series: Tensor) -> Tensor:
        state = series.new_zeros(len(series), len(self.rate))
        for step in series.unbind(1):
            value, gate = self.cell(torch.cat([step, state], 1)).chunk(2, 1)
            state = state - 0.3 * F.softplus(self.rate) * state
            state = state + value.tanh() * gate.sigmoid()
        return self.head(state)


class WorldModel(nn.Module):
    """Latent states drawn from distributions, of what was seen and of what was done."""

    def __init__(self, hidden: int = 24, latent: int = 6) -> None:
        super().__init__()
        self.latent = latent
        self.start = nn.Parameter(torch.zeros(hidden))
        self.mix = nn.Linear(latent + 3, 20)
        self.cell = nn.GRUCell(20, hidden)
        self.prior = nn.Linear(hidden, 2 * latent)
        self.posterior = nn.Linear(hidden + 5, 2 * latent)
        self.decoder = nn.Linear(hidden + latent, 5)

    def forward(self, seen: Tensor, done: Tensor) -> dict[str, Tensor]:
        state = self.start.expand(len(seen), -1)
        latent = seen.new_zeros(len(seen), self.latent)
        images, surprise = [], seen.new_zeros(len(seen))
        for now, action in zip(seen.unbind(1), done.unbind(1), strict=True):
            state = self.cell(F.elu(self.mix(torch.cat([latent, action], 1))), state)
            prior = self.normal(self.prior(state))
            posterior = self.normal(self.posterior(torch.cat([state, now], 1)))
            latent = posterior.mean + posterior.stddev * torch.randn_like(prior.mean)
            surprise = surprise + kl_divergence(posterior, prior).sum(1)
            images.append(self.decoder(torch.cat([state, latent], 1)))
        return {"images": torch.stack(images, 1), "surprise": surprise}

    @staticmethod
    def normal(values: Tensor) -> Normal:
        mean, spread = values.chunk(2, 1)
        return Normal(mean, F.softplus(spread) + 0.1)
