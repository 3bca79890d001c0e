"""Multi-head attention that has lost some of its heads."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class NarrowMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` without ``num_heads * head_dim == embed_dim``.

    Only ``add_bias_kv`` and ``add_zero_attn`` are not supported.
    """

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
        q, k, v = self._project(sources)
        scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
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

    def _project(self, sources: list[Tensor]) -> list[Tensor]:
        """Return query, key and value, each (batch, heads, length, head_dim)."""
        weights = self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = [
            F.linear(source, weight, bias)
            for source, weight, bias in zip(sources, weights, biases, strict=True)
        ]
        return [
            heads.view(*heads.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)
            for heads in projected
        ]


def _additive(mask: Tensor | None, scores: Tensor, batch: int) -> Tensor:
    """Return `mask` as what is added to the scores, which it broadcasts against."""
    if mask is None:
        return scores.new_zeros(())
    if mask.dim() == 3:
        mask = mask.view(batch, -1, *mask.shape[1:])
    if mask.dtype == torch.bool:
        return scores.new_zeros(mask.shape).masked_fill(mask, float("-inf"))
    return mask
