"""What single operations do to units, worked out by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import extract, load_submodel, plan_submodels
from flwr_asyncdrop.submodel.discovery.labels import LabelSpace
from tests.nightly import by_night
from tests.submodel.networks import images, seeded, tokens, vectors
from tests.submodel.silencing import random_keep, run, silenced


def check(model, inputs):
    """Plan; hold the narrow model against the full one with units silenced."""
    plan = plan_submodels(model, inputs)
    indices = plan.indices(random_keep(plan, seed=1, rate=0.5))
    small = load_submodel(model, extract(model.state_dict(), indices), scale=False)
    expected = run(model, silenced(model, plan, indices), inputs)
    torch.testing.assert_close(small(inputs), expected)
    return plan


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(4, 6, batch_first=True)
        self.head = nn.Linear(6, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


def sizes(plan):
    return {group.name: group.size for group in plan.groups}


@by_night
def test_a_recurrent_layer_is_traced_in_linear_time(monkeypatch):
    """Its stack of steps asks of each step once, and not once for each other one."""
    asked = []
    varying = LabelSpace.varying
    monkeypatch.setattr(
        LabelSpace, "varying", lambda *args: asked.append(None) or varying(*args)
    )
    counts = []
    for steps in (8, 32):
        asked.clear()
        plan_submodels(seeded(Reader), torch.randn(1, steps, 4, dtype=torch.float64))
        counts.append(len(asked))
    assert counts[1] < 4.5 * counts[0]


def test_gated_linear_unit_ties_its_halves():
    model = seeded(lambda: nn.Sequential(nn.Linear(5, 6), nn.GLU(), nn.Linear(3, 2)))

    plan = check(model, vectors())

    assert plan.axes["0.weight"][0].tolist() == [0, 1, 2, 0, 1, 2]
    assert plan.axes["2.weight"][1].tolist() == [0, 1, 2]


def test_gate_over_channels():
    def build():
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.GLU(1), nn.Conv2d(2, 2, 1))

    plan = check(seeded(build), images())

    assert plan.axes["0.bias"][0].tolist() == [0, 1, 0, 1]


def test_gate_over_positions_that_are_not_units():
    def build():
        return nn.Sequential(nn.Conv2d(3, 4, 1), nn.GLU(2), nn.Conv2d(4, 2, 1))

    assert sizes(check(seeded(build), images())) == {"0": 4}


def test_channel_shuffle_keeps_whole_columns():
    """Channels 0..5 in 2 groups come out as 0, 3, 1, 4, 2, 5."""

    def build():
        return nn.Sequential(
            nn.Conv2d(3, 6, 1), nn.ChannelShuffle(2), nn.Conv2d(6, 2, 1)
        )

    plan = check(seeded(build), images())

    assert plan.axes["0.weight"][0].tolist() == [0, 1, 2, 0, 1, 2]
    assert plan.axes["2.weight"][1].tolist() == [0, 0, 1, 1, 2, 2]


def test_pooling_of_images_in_channels_last_order_changes_strides_alone():
    class ChannelsLast(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            x = self.conv(x.contiguous(memory_format=torch.channels_last))
            return self.fc(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))

    assert sizes(check(seeded(ChannelsLast), images())) == {"conv": 4}


@pytest.mark.parametrize(
    ("size", "stride", "offset"),
    [
        pytest.param((2, 4, 4), (16, 1, 4), None, id="transposed in place"),
        pytest.param((2, 2, 8), (16, 8, 1), None, id="another shape"),
        pytest.param((2, 4, 4), (16, 4, 1), 0, id="an offset that is given"),
    ],
)
def test_restriding_that_may_move_elements_freezes_units(size, stride, offset):
    class Restrided(nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = nn.Linear(5, 16)
            self.head = nn.Linear(size[-1], 2)

        def forward(self, x):
            hidden = self.hidden(x).view(2, 4, 4)
            return self.head(torch.as_strided(hidden, size, stride, offset))

    with pytest.raises(UnsupportedModelError, match=r"hidden: .*change places"):
        plan_submodels(seeded(Restrided), vectors()[:2])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_embedding_bag(mode):
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.bag = nn.EmbeddingBag(20, 4, mode=mode)
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(self.bag(x))

    plan = check(seeded(Bag), tokens())

    assert {name: list(dims) for name, dims in plan.axes.items()} == {
        "bag.weight": [1],
        "head.weight": [1],
    }


class Masked(nn.Module):
    """Attention that does not look at token 0."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 4, batch_first=True)

    def forward(self, x):
        features = self.embedding(x)
        padding = x == 0
        mixed = self.attention(features, features, features, key_padding_mask=padding)
        return mixed[0].tanh()


def test_heads_under_a_padding_mask():
    """The mask is repeated for each head; that makes no residual stream.

    Attention also averages its weights over the heads, which nobody uses here.
    """
    plan = check(seeded(Masked), tokens())

    heads = next(group for group in plan.groups if group.name == "attention")
    assert (heads.size, heads.kind) == (4, "internal")


@pytest.mark.parametrize(
    "use", [lambda x: x, torch.exp, lambda x: x + x.mean(), lambda x: float(x[0])]
)
def test_average_over_units_that_is_used(use):
    class Averages(nn.Sequential):
        def forward(self, x):
            hidden = self[0](x)
            return self[1](hidden), use(hidden.mean(1))

    model = seeded(lambda: Averages(nn.Linear(5, 4), nn.Linear(4, 3)))

    with pytest.raises(UnsupportedModelError, match=r"0: reduced over by aten\.mean"):
        plan_submodels(model, vectors())


class Turned(nn.Module):
    """Heads of which every position is multiplied by a constant of its own."""

    def __init__(self):
        super().__init__()
        self.make = nn.Linear(5, 12)
        self.out = nn.Linear(12, 3)

    def forward(self, x):
        heads = self.make(x).unflatten(-1, (-1, 4))
        heads = heads * torch.linspace(1, 2, 4, dtype=x.dtype)
        return self.out(heads.flatten(1))


def test_positions_within_a_head_that_differ_leave_whole_heads():
    plan = check(seeded(Turned), vectors())

    expected = [0] * 4 + [1] * 4 + [2] * 4
    assert plan.axes["make.weight"][0].tolist() == expected
    assert plan.axes["out.weight"][1].tolist() == expected


def test_repeated_activation_that_meets_nothing():
    class Repeats(nn.Sequential):
        def forward(self, x):
            wide = x.sum(1, keepdim=True).expand(-1, 4)
            return super().forward(x) + wide.sum(1, keepdim=True)

    model = seeded(lambda: Repeats(nn.Linear(5, 4), nn.Linear(4, 3)))

    assert sizes(check(model, vectors())) == {"0": 4}


def test_units_that_all_hang_together():
    class Shuffles(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(5, 4)
            self.second = nn.Linear(4, 4)
            self.third = nn.Linear(4, 3)

        def forward(self, x):
            x = self.first(x)
            return self.third(F.relu(self.second(x) + self.second(x.roll(1, 1))))

    plan = check(seeded(Shuffles), vectors())

    assert sizes(plan) == {"second": 4}
    assert "stand or fall together" in plan.left_out["first"]


def test_parameter_of_its_own_is_named_with_the_reason_of_its_units():
    class Token(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.rand(1, 1, 5))
            self.hidden = nn.Linear(5, 4)
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            x = F.layer_norm(x + self.token.squeeze(0), (5,))
            return self.head(F.relu(self.hidden(x)))

    plan = check(seeded(Token), vectors())

    assert sizes(plan) == {"hidden": 4}
    assert "combined with positions always kept" in plan.left_out["token"]
