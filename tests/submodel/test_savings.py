"""Bytes and operations of models and submodels, counted by hand."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import (
    SubmodelCost,
    declare_plan,
    droppable_share,
    narrow,
    plan_submodels,
    savings,
    savings_table,
    step_flops,
)
from tests.submodel.networks import Recurrent, tokens


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(10, 8)
        self.scale = nn.Parameter(torch.ones(8))

    def forward(self, x):
        return (self.table(x) * self.scale).sum(-1)


def test_a_model_without_flops_saves_none():
    words = torch.arange(4)

    (row,) = savings(plan_submodels(Words(), words), Words(), words, (0.5,))

    assert row == SubmodelCost(0.5, 176, 0.5, 0, 1.0)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))


def test_rows(model):
    """8 hidden neurons: 5 + 1 + 3 weights and 2 (5 + 3) operations each."""
    inputs = torch.ones(1, 5)

    rows = savings(plan_submodels(model, inputs), model, inputs, (0.0, 0.25, 0.5))

    assert rows == (
        SubmodelCost(0.0, 288, 1.0, 128, 1.0),
        SubmodelCost(0.25, 216, 0.75, 96, 0.75),
        SubmodelCost(0.5, 144, 0.5, 64, 0.5),
    )


def test_counts_that_chance_rounds_are_a_mean():
    """A quarter of two neurons: one is dropped in every other task."""
    model = nn.Sequential(nn.Linear(5, 2), nn.ReLU(), nn.Linear(2, 3, bias=False))
    inputs = torch.ones(1, 5)

    (row,) = savings(plan_submodels(model, inputs), model, inputs, [0.25])

    full = 4 * 2 * 9
    assert row == SubmodelCost(0.25, full * 3 // 4, 0.75, 24, 0.75)


def test_table(model):
    inputs = torch.ones(1, 5)

    table = savings_table(savings(plan_submodels(model, inputs), model, inputs))

    assert table.splitlines() == [
        "dropped     bytes  of full     FLOPs  of full",
        "  25.0%       216    75.0%        96    75.0%",
        "  50.0%       144    50.0%        64    50.0%",
    ]


@pytest.mark.parametrize("rate", [1.0, -0.1])
def test_rate_out_of_range(model, rate):
    inputs = torch.ones(1, 5)
    plan = plan_submodels(model, inputs)

    with pytest.raises(ConfigError, match=r"rates=.* must all be in \[0, 1\)"):
        savings(plan, model, inputs, (0.5, rate))


@pytest.mark.parametrize("other", [Words(), nn.Linear(3, 2), nn.Linear(2, 3)])
def test_the_plan_of_another_model_is_refused(other):
    plan = declare_plan({"weight": (4, 3)}, {"units": {"weight": 0}})
    with pytest.raises(
        ConfigError, match=r"the plan has weight of shape \(4, 3\), and"
    ):
        savings(plan, other, torch.zeros(1, 3))


def test_submodels_hold_the_tables_that_their_forward_pass_reads():
    class Looks(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
            self.register_buffer("order", torch.tensor([2, 0, 1]))

        def forward(self, x):
            return super().forward(x)[:, self.order]

    model, inputs = Looks(), torch.ones(1, 5)

    (row,) = savings(plan_submodels(model, inputs), model, inputs, [0.5])

    assert row.num_bytes == 4 * (4 * 5 + 4 + 3 * 4 + 3) + 3 * 8


def test_droppable_share_counts_elements_once():
    """Of 4 x 4 elements the first two rows and the first column: 8 + 2 of 18."""
    rows, column = torch.tensor([0, 1, -1, -1]), torch.tensor([0, -1, -1, -1])
    plan = declare_plan(
        {"w": (4, 4), "b": (2,)}, {"rows": {"w": (0, rows)}, "one": {"w": (1, column)}}
    )

    assert droppable_share(plan) == pytest.approx(10 / 18)


def test_mlp_and_its_narrower_copy():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    shapes = {"0.weight": (4, 5), "0.bias": (4,), "2.weight": (3, 4), "2.bias": (3,)}

    full = step_flops(model, torch.ones(2, 5))
    small = step_flops(narrow(model, shapes), (torch.ones(2, 5),))

    assert full == 2 * 2 * (5 * 8 + 8 * 3)
    assert small == full // 2


def test_inputs_of_another_precision_count_as_well():
    """NumPy's are double, and plans take them."""
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))

    assert step_flops(model, torch.ones(2, 5).double()) == 2 * 2 * (5 * 8 + 8 * 3)


def test_convolution():
    model = nn.Conv2d(3, 4, 3, padding=1)

    assert step_flops(model, torch.ones(1, 3, 8, 8)) == 2 * 8 * 8 * 3 * 4 * 9


@pytest.mark.parametrize("layers", [1, 2])
def test_fused_lstm_is_seen(layers):
    gates = 4 * 8
    first = 2 * 2 * 6 * gates * (6 + 8)  # 2 sequences of 6 steps, 6 features
    others = 2 * 2 * 6 * gates * (8 + 8) * (layers - 1)
    head = 2 * 2 * 8 * 3

    model = Recurrent(num_layers=layers)

    assert step_flops(model, tokens()) == first + others + head


def test_bytes_are_those_that_travel():
    """Two layers, the first frozen: 6 x 3 and 3 numbers of four bytes travel."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    plan, inputs = plan_submodels(net, torch.zeros(1, 4)), torch.zeros(1, 4)
    net[0].requires_grad_(False)
    (row,) = savings(plan, net, inputs, rates=(0.5,))
    assert row.num_bytes == 4 * (3 * 3 + 3)
    assert row.bytes_ratio == pytest.approx((3 * 3 + 3) / (6 * 3 + 3))
    (whole,) = savings(plan, net.requires_grad_(False), inputs, rates=(0.5,))
    assert whole.num_bytes == 4 * (4 * 3 + 3 + 3 * 3 + 3)
