"""A small Transformer for tokens: a classifier of texts, or a language model."""

from contextlib import nullcontext
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from flwr_asyncdrop.app.models.width import scaled

_FEATURES: Final = 32
_HEADS: Final = 4
_HEAD_SIZE: Final = 8
_FEED_FORWARD: Final = 64
_PADDING: Final = 0


class _Attention(nn.Module):
    """Multi-head attention, with heads of 8 features, however many there are."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        inner = heads * _HEAD_SIZE
        self.query = nn.Linear(features, inner, bias=False)
        self.key = nn.Linear(features, inner, bias=False)
        self.value = nn.Linear(features, inner, bias=False)
        self.output = nn.Linear(inner, features)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (N, T, features) to the same; `mask`, (N, 1, T, T), is true to attend."""
        query, key, value = (
            layer(x).unflatten(-1, (-1, _HEAD_SIZE)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        # The fused kernels of a GPU sum gradients in any order
        with sdpa_kernel(SDPBackend.MATH) if x.is_cuda else nullcontext():
            mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        out: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return out


class _Block(nn.Module):
    """Attention and a feed-forward network, each normalised before and added."""

    def __init__(self, features: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(features)
        self.attention = _Attention(features, heads)
        self.norm2 = nn.LayerNorm(features)
        self.hidden = nn.Linear(features, hidden)
        self.output = nn.Linear(hidden, features)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (N, T, features) to the same."""
        x = x + self.attention(self.norm1(x), mask)
        added: Tensor = self.output(F.relu(self.hidden(self.norm2(x))))
        return x + added


class Transformer(nn.Module):
    """Embedded tokens and positions, a pre-norm block, and a linear layer.

    Tokens have 32 features, attention 4 heads of 8, and the feed-forward networks 64
    units, all but the heads' size times `width`. Token 0 is padding: no other token
    attends to it, and the mean leaves it out. Texts have at most `length` tokens.

    With `each_token` it is a causal language model: a token attends to none after it,
    and logits are of each token. The output's weights are not the embedding's: the
    embedding stays whole in a submodel either way, and a small one is cheap.
    """

    def __init__(
        self,
        length: int,
        vocabulary: int,
        num_outputs: int,
        width: float = 1.0,
        *,
        each_token: bool = False,
    ) -> None:
        super().__init__()
        features, heads = scaled(_FEATURES, width), scaled(_HEADS, width)
        self.each_token = each_token
        self.tokens = nn.Embedding(vocabulary, features)
        self.positions = nn.Parameter(torch.empty(length, features))
        for weights in (self.tokens.weight, self.positions):
            nn.init.normal_(weights, std=features**-0.5)
        hidden = scaled(_FEED_FORWARD, width)
        self.block = _Block(features, heads, hidden)
        self.norm = nn.LayerNorm(features)
        self.output = nn.Linear(features, num_outputs)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map token ids (N, T) to (N, num_outputs), or (N, T, num_outputs)."""
        length = tokens.shape[1]
        words = tokens != _PADDING
        mask = self._mask(words)
        x = self.tokens(tokens) + self.positions[:length]
        x = self.norm(self.block(x, mask))
        if not self.each_token:
            weights = words.to(x.dtype).unsqueeze(-1)
            x = (x * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        logits: Tensor = self.output(x)
        return logits

    def _mask(self, words: Tensor) -> Tensor:
        """Return who attends to whom: (N, 1, T, T).

        Everyone attends to itself at least: of no token at all, there is no mean.
        """
        place = torch.arange(words.shape[1], device=words.device)
        mask = words[:, None, None, :]
        if self.each_token:
            mask = mask & (place[:, None] >= place)
        return mask | (place[:, None] == place)
