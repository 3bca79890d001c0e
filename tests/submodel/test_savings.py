"""Bytes and operations of submodels, counted by hand."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.submodel import (
    Saving,
    declare_plan,
    droppable_share,
    plan_submodels,
    savings,
    savings_table,
)


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3, bias=False))


def test_rows(model):
    """8 hidden neurons: 5 + 1 + 3 weights and 2 (5 + 3) operations each."""
    inputs = torch.ones(1, 5)

    rows = savings(plan_submodels(model, inputs), model, inputs, (0.0, 0.25, 0.5))

    assert rows == (
        Saving(0.0, 288, 1.0, 128, 1.0),
        Saving(0.25, 216, 0.75, 96, 0.75),
        Saving(0.5, 144, 0.5, 64, 0.5),
    )


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
