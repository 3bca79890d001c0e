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
        is_causal = is_causal and key_padding_mask is None and not need_weights
        if is_causal:  # what the stock module goes by then
            attn_mask = None
        mask = _sum_of_masks(attn_mask, key_padding_mask, q, k.shape[2])
        dropout, weights = self.dropout if self.training else 0.0, None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, dropout)
            mixed = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            # A query that may attend to no key gets zeros from it, not NaN.
            mixed = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

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


def use_padded_tensors(model: nn.Module) -> None:
    """Keep encoders whose attention has lost heads from nesting what is padded.

    Only stock attention takes nested tensors, and the encoder asks its first layer
    alone.
    """
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(
            isinstance(part, NarrowMultiheadAttention) for part in module.modules()
        ):
            module.use_nested_tensor = False


def _sum_of_masks(
    mask: Tensor | None, padding: Tensor | None, query: Tensor, keys: int
) -> Tensor | None:
    """Return what is added to the scores, which it broadcasts against, if anything.

    Of so many `keys`, the last that the module itself appends are never masked.
    """
    masks = []
    if mask is not None:
        heads = mask.view(len(query), -1, *mask.shape[1:]) if mask.dim() == 3 else mask
        masks.append(_additive(heads, query))
    if padding is not None:
        masks.append(_additive(padding.reshape(len(query), 1, 1, -1), query))
    if not masks:
        return None
    added = masks[0] if len(masks) == 1 else masks[0] + masks[1]
    return F.pad(added, (0, keys - added.shape[-1]))


def _additive(mask: Tensor, query: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        return query.new_zeros(mask.shape).masked_fill(mask, float("-inf"))
    return mask.to(query.dtype)
