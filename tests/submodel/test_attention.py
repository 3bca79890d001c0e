"""Attention that may lose heads computes what torch's does while it has all of them."""

import itertools

import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel.narrowing.attention import NarrowMultiheadAttention

HEADS, LENGTH, KEYS, BATCH = 4, 5, 6, 3
OTHER_WIDTHS = {"kdim": 7, "vdim": 9, "add_bias_kv": True, "add_zero_attn": True}


def masks(batch):
    generator = torch.Generator().manual_seed(1)
    drawn = torch.randn(batch * HEADS, LENGTH, KEYS, generator=generator).double()
    return {"none": None, "some": drawn[0] > 1, "added": drawn[0], "of each": drawn}


def paddings(batched):
    padding = torch.zeros(*[BATCH] * batched, KEYS, dtype=torch.bool)
    padding[..., -2:] = True
    return {"none": None, "some": padding, "added": padding.double() * -3}


def computed(attention, sources, **how):
    inputs = [source.clone().requires_grad_() for source in sources]
    mixed, weights = attention(*inputs, **how)
    loss = mixed.square().sum()
    if weights is not None:
        loss = loss + (weights * torch.arange(weights.numel()).view_as(weights)).sum()
    gradients = torch.autograd.grad(loss, [*inputs, *attention.parameters()])
    return [mixed, weights, *gradients]


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("options", [{}, {"bias": False}, OTHER_WIDTHS], ids=str)
@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("batched", [False, True])
def test_it_is_torchs_with_all_heads(options, batch_first, batched):
    torch.manual_seed(0)
    stock = nn.MultiheadAttention(12, HEADS, batch_first=batch_first, **options)
    own = NarrowMultiheadAttention(12, HEADS, batch_first=batch_first, **options)
    for parameter in stock.double().parameters():
        nn.init.normal_(parameter)
    own.double().load_state_dict(stock.state_dict())
    widths = (12, options.get("kdim", 12), options.get("vdim", 12))
    sources = [
        torch.randn(BATCH, length, width).double()
        for length, width in zip((LENGTH, KEYS, KEYS), widths, strict=True)
    ]
    if not batched:
        sources = [source[0] for source in sources]
    elif not batch_first:
        sources = [source.transpose(0, 1) for source in sources]

    ways = itertools.product(
        masks(BATCH if batched else 1).values(),
        paddings(batched).values(),
        [{"need_weights": False}, {}, {"average_attn_weights": False}],
    )
    for mask, padding, how in ways:
        how = {"attn_mask": mask, "key_padding_mask": padding, **how}
        found, expected = (computed(each, sources, **how) for each in (own, stock))
        torch.testing.assert_close(found, expected)
