"""Multi-head attention that has lost some of its heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NarrowMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` without ``num_heads * head_dim == embed_dim``."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as the stock module does."""
        sources = [query, key, value]
        batched = query.dim() == 3
        if not batched:
            sources = [source.unsqueeze(0) for source in sources]
        elif not self.batch_first:
            sources = [source.transpose(0, 1) for source in sources]
        q, k, v = self._heads(sources)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        if attn_mask is not None:
            scores = scores + _additive(attn_mask, scores, q.shape[0])
        if key_padding_mask is not None:
            padding = key_padding_mask.reshape(q.shape[0], 1, 1, -1)
            scores = scores + _additive(padding, scores, q.shape[0])
        weights = F.dropout(scores.softmax(-1), self.dropout, self.training)
        output = self.out_proj((weights @ v).transpose(1, 2).flatten(2))
        shown = weights.mean(1) if average_attn_weights else weights
        if not batched:
            output, shown = output.squeeze(0), shown.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, shown if need_weights else None

    def _heads(self, sources: list[Tensor]) -> list[Tensor]:
        """Return query, key and value, each (batch, heads, length, head_dim)."""
        query, *others = self._project(sources)
        for number, bias in enumerate((self.bias_k, self.bias_v)):
            if bias is not None:
                extra = bias.expand(len(query), -1, -1)
                others[number] = torch.cat([others[number], extra], 1)
        if self.add_zero_attn:
            others = [F.pad(other, (0, 0, 0, 1)) for other in others]
        return [
            heads.view(*heads.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for heads in [query, *others]
        ]

    def _project(self, sources: list[Tensor]) -> list[Tensor]:
        """Return query, key and value, each (batch, length, heads * head_dim)."""
        weights: tuple[Tensor, ...]
        weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [
            F.linear(source, weight, bias)
            for source, weight, bias in zip(sources, weights, biases, strict=True)
        ]


def _additive(mask: Tensor, scores: Tensor, batch: int) -> Tensor:
    """Return `mask` as what is added to the scores, which it broadcasts against.

    Positions that the module itself appends to the keys are never masked.
    """
    if mask.dim() == 3:
        mask = mask.view(batch, -1, *mask.shape[1:])
    if mask.dtype == torch.bool:
        mask = scores.new_zeros(mask.shape).masked_fill(mask, float("-inf"))
    return F.pad(mask, (0, scores.shape[-1] - mask.shape[-1]))
