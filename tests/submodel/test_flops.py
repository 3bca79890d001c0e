"""FLOPs of one forward pass, counted by hand."""

import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel import narrow, step_flops
from tests.submodel.networks import Recurrent, tokens


def test_mlp_and_its_narrower_copy():
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    shapes = {"0.weight": (4, 5), "0.bias": (4,), "2.weight": (3, 4), "2.bias": (3,)}

    full = step_flops(model, torch.ones(2, 5))
    small = step_flops(narrow(model, shapes), (torch.ones(2, 5),))

    assert full == 2 * 2 * (5 * 8 + 8 * 3)
    assert small == full // 2


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
