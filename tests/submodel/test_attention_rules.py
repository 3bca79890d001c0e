"""What the operations around attention do to units, worked out by hand."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import plan_submodels
from tests.submodel.networks import seeded, vectors
from tests.submodel.test_rules import check as double_check
from tests.submodel.test_rules import sizes


def sequences():
    return torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))


def check(make, inputs):
    return double_check(seeded(make).double(), inputs.double())


class SharedKey(nn.Module):
    """Four queries of 3 attend to one key, as in multi-query attention."""

    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(8, 12)
        self.k_proj, self.v_proj = nn.Linear(8, 3), nn.Linear(8, 3)
        self.o_proj = nn.Linear(12, 8)

    def rotated(self, x):
        """Rotate the first two features of every head by their position."""
        angle = torch.arange(x.shape[2]).unsqueeze(1)
        first, rest = x[..., :2], x[..., 2:]
        turned = torch.cat([-first[..., 1:], first[..., :1]], -1)
        return torch.cat([first * angle.cos() + turned * angle.sin(), rest], -1)

    def forward(self, x):
        query = self.q_proj(x).view(*x.shape[:2], -1, 3).transpose(1, 2)
        key, value = (layer(x).unsqueeze(1) for layer in (self.k_proj, self.v_proj))
        key, value = self.rotated(key), value.expand(-1, query.shape[1], -1, -1)
        weights = (self.rotated(query) @ key.transpose(2, 3)).softmax(-1)
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2))


class SharedKeyInOne(SharedKey):
    """Queries, key and value come out of one projection."""

    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = nn.Linear(8, 18), None, None

    def forward(self, x):
        heads = self.q_proj(x).view(*x.shape[:2], -1, 3).transpose(1, 2)
        query, key, value = heads[:, :-2], heads[:, [-2]], heads[:, [-1]]
        weights = (query @ key.transpose(2, 3)).softmax(-1)
        return self.o_proj((weights @ value).transpose(1, 2).flatten(2))


class TwoDims(nn.Module):
    """Two heads of 4 are two dims of the weights, which einsum sums over."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (
            nn.Parameter(torch.randn(8, 2, 4)) for _ in range(4)
        )

    def forward(self, x):
        query, key, value = (
            torch.einsum("bth,hnd->btnd", x, weight)
            for weight in (self.q, self.k, self.v)
        )
        weights = torch.einsum("bind,bjnd->bnij", query, key).softmax(-1)
        mixed = torch.einsum("bnij,bjnd->bind", weights, value)
        return torch.einsum("bind,hnd->bih", mixed, self.o)


class Sliced(nn.Module):
    """Five units go to one layer and three to another; the bound is in the code."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 8)
        self.left, self.right = nn.Linear(5, 2), nn.Linear(3, 2)

    def forward(self, x):
        x = self.first(x)
        return self.left(x[:, :5].relu()) + self.right(x[:, 5:])


class Overlapping(Sliced):
    def __init__(self):
        super().__init__()
        self.right = nn.Linear(4, 2)

    def forward(self, x):
        x = self.first(x)
        return self.left(x[:, :5].relu()) + self.right(x[:, 4:])


class Reassembled(nn.Module):
    """The bound shows in no shape: units that follow the first two do as well."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        return self.second(torch.cat([x[:, :2].relu(), x[:, 2:]], 1))


class Cached(nn.Module):
    """An empty cache is filled, and read again."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x):
        x = self.first(x)
        return self.second(torch.zeros_like(x).copy_(x).relu())


@pytest.mark.parametrize("model", [SharedKey, SharedKeyInOne])
def test_queries_of_one_key_are_units(model):
    plan = check(model, sequences())

    assert sizes(plan) == {"q_proj": 4}
    units = plan.axes["q_proj.weight"][0].tolist()
    assert units[:12] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert set(units[12:]) <= {-1}


def test_heads_that_are_a_dim_of_the_weights():
    plan = check(TwoDims, sequences())

    assert {name: list(dims) for name, dims in plan.axes.items()} == {
        name: [1, 2] for name in ("q", "k", "v", "o")
    }


def test_only_the_last_piece_of_a_cut_at_a_fixed_place_narrows():
    plan = check(Sliced, vectors())

    assert plan.axes["first.weight"][0].tolist() == [-1] * 5 + [0, 1, 2]


@pytest.mark.parametrize("model", [Overlapping, Reassembled])
def test_pieces_that_stay_whole(model):
    with pytest.raises(UnsupportedModelError, match="cut into unequal parts"):
        plan_submodels(seeded(model), vectors())


def test_what_fills_a_cache():
    assert sizes(check(Cached, vectors())) == {"first": 8}
