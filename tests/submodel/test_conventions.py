"""Size attributes of modules without a patch follow from names and shapes."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import extract, load_submodel, narrow, plan_submodels
from tests.submodel.networks import seeded
from tests.submodel.silencing import random_keep, run, silenced


class Attention(nn.Module):
    """As people write it: 4 heads of 5, on 12 features."""

    def __init__(self):
        super().__init__()
        self.n_head, self.head_dim, self.all_head_size = 4, 5, 20
        self.query, self.key, self.value = (nn.Linear(12, 20) for _ in range(3))
        self.out = nn.Linear(20, 12)

    def split(self, x):
        return x.view(*x.shape[:2], self.n_head, self.head_dim).transpose(1, 2)

    def forward(self, x):
        query, key, value = (
            self.split(layer(x)) for layer in (self.query, self.key, self.value)
        )
        weights = (query @ key.transpose(2, 3) * self.head_dim**-0.5).softmax(-1)
        mixed = (weights @ value).transpose(1, 2)
        return self.out(mixed.reshape(*x.shape[:2], self.all_head_size))


class OneKey(nn.Module):
    """All 4 heads of 5 share one key and one value."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.num_kv_heads, self.num_key_value_groups = 4, 1, 4
        self.query, self.out = nn.Linear(12, 20), nn.Linear(20, 12)
        self.key, self.value = nn.Linear(12, 5), nn.Linear(12, 5)

    def forward(self, x):
        query = self.query(x).unflatten(2, (self.num_heads, 5)).transpose(1, 2)
        key, value = (
            layer(x)
            .unflatten(2, (self.num_kv_heads, 5))
            .transpose(1, 2)
            .repeat_interleave(self.num_key_value_groups, 1)
            for layer in (self.key, self.value)
        )
        weights = (query @ key.transpose(2, 3)).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2))


class FusedAttention(nn.Module):
    """One projection for 4 queries, 2 keys and 2 values; sizes in a shared config."""

    class Config:
        def __init__(self):
            self.num_heads, self.num_kv_heads, self.hidden_size = 4, 2, 12

    def __init__(self, config):
        super().__init__()
        self.config, self.head_dim = config, 3
        self.qkv = nn.Linear(12, (4 + 2 * 2) * 3)
        self.proj = nn.Linear(12, 12)

    def forward(self, x):
        heads, shared = self.config.num_heads, self.config.num_kv_heads
        mixed = self.qkv(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)
        query, key, value = mixed.split([heads, shared, shared], 1)
        key, value = (k.repeat_interleave(heads // shared, 1) for k in (key, value))
        weights = (query @ key.transpose(2, 3)).softmax(-1)
        return self.proj((weights @ value).transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class FrozenConfig:
    num_heads: int = 4
    num_kv_heads: int = 2
    hidden_size: int = 12


class TwoFused(nn.Module):
    def __init__(self, config=None):
        super().__init__()
        config = config or FusedAttention.Config()
        self.first, self.second = FusedAttention(config), FusedAttention(config)

    def forward(self, x):
        return self.second(x + self.first(x))


class Inner(nn.Module):
    """The inner width is also the outer one; only the name tells them apart."""

    def __init__(self):
        super().__init__()
        self.hidden_size, self.inner_dim = 6, 6
        self.up, self.down = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        inner = self.up(x.view(-1, self.hidden_size)).relu()
        return self.down(inner.view(-1, self.inner_dim))


class HalvesOfHeads(Attention):
    """Every head takes the same features of the values: half a head could go."""

    def forward(self, x):
        query, key = self.split(self.query(x)), self.split(self.key(x))
        weights = (query @ key.transpose(2, 3)).softmax(-1).mean(1, keepdim=True)
        mask = torch.arange(4.0).view(1, 4, 1, 1)
        value = self.value(x).view(*x.shape[:2], self.n_head, -1).transpose(1, 2)
        mixed = (weights * mask @ value).transpose(1, 2)
        return self.out(mixed.flatten(2))


def sequences():
    return torch.randn(2, 6, 12, generator=torch.Generator().manual_seed(0))


def submodel(model, inputs, rate):
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, 1, rate))
    small = load_submodel(model, extract(model.state_dict(), indices), scale=False)
    return small, silenced(model, plan, indices)


@pytest.mark.parametrize("make", [Attention, OneKey, TwoFused])
@pytest.mark.parametrize("rate", [0.25, 0.5, 0.75])
def test_narrower_attention_is_the_silenced_one(make, rate):
    model, inputs = seeded(make).double().eval(), sequences().double()

    small, silent = submodel(model, inputs, rate)

    torch.testing.assert_close(small(inputs), run(model, silent, inputs))


@pytest.mark.parametrize(
    ("make", "units"),
    [
        (Attention, {"query": 4}),
        (OneKey, {"query": 4}),
        (TwoFused, {"first.qkv": 2, "second.qkv": 2}),
    ],
)
def test_heads_are_units(make, units):
    plan = plan_submodels(seeded(make), sequences())

    assert {group.name: group.size for group in plan.groups} == units


@pytest.mark.parametrize("make", [FusedAttention.Config, FrozenConfig])
def test_a_shared_configuration_is_copied(make):
    model = seeded(lambda: TwoFused(make()))
    config = model.first.config

    small, _ = submodel(model, sequences(), 0.5)

    found = [small.first.config, small.second.config, config, model.second.config]
    assert [(k.num_heads, k.num_kv_heads) for k in found] == [(2, 1)] * 2 + [(4, 2)] * 2
    assert {k.hidden_size for k in found} == {12}
    assert model.second.config is config


def test_only_an_inner_width_follows_where_both_are_equal():
    small, _ = submodel(seeded(Inner), torch.randn(2, 6), 0.5)

    assert (small.hidden_size, small.inner_dim, small.up.out_features) == (6, 3, 3)


def test_parts_of_heads_stay_whole():
    with pytest.raises(UnsupportedModelError, match="would not follow from its shapes"):
        plan_submodels(seeded(HalvesOfHeads), sequences())


def test_a_block_that_is_left_out_keeps_its_sizes():
    model = seeded(lambda: nn.Sequential(Inner(), Inner()))
    shapes = {name: tuple(each.shape) for name, each in model.state_dict().items()}
    empty = {n: (0, *shape[1:]) for n, shape in shapes.items() if n.startswith("0.")}

    small = narrow(model, shapes | empty)

    assert (small[0].hidden_size, small[0].inner_dim) == (6, 6)
