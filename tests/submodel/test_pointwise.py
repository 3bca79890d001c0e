"""Strided 1x1 convolutions of few channels, which oneDNN may compute wrongly."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from flwr_asyncdrop.submodel import load_submodel
from flwr_asyncdrop.submodel.narrowing.pointwise import (
    StridedPointwiseConv2d,
    use_safe_convolutions,
)
from tests.nightly import nightly

# Run with AVX2 as the newest instructions, where oneDNN's own gradients are wrong (two
# threads) or end the process (one).
GRADIENTS = """
import sys
import torch
from torch import nn
from flwr_asyncdrop.submodel import load_submodel

torch.set_num_threads(int(sys.argv[1]))
torch.manual_seed(0)
for width in range(1, 9):
    full = nn.Sequential(nn.Conv2d(3, 12, 1), nn.Conv2d(12, 12, 1, 2))
    state = {name: tensor.clone() for name, tensor in full.state_dict().items()}
    for name in ("0.weight", "0.bias"):
        state[name] = state[name][:width]
    state["1.weight"] = state["1.weight"][:, :width]
    small = load_submodel(full, state)
    exact = load_submodel(full, state).double()
    for _ in range(5):
        images = torch.randn(8, 3, 16, 16)
        small.zero_grad()
        exact.zero_grad()
        small(images.to(memory_format=torch.channels_last)).square().sum().backward()
        exact(images.double()).square().sum().backward()
        for one, other in zip(small.parameters(), exact.parameters()):
            assert torch.allclose(one.grad.double(), other.grad, rtol=1e-3, atol=1e-2)
"""


@pytest.mark.parametrize("threads", [1, nightly(2)])
def test_gradients_are_right_on_a_processor_with_avx2_alone(threads):
    done = subprocess.run(
        [sys.executable, "-c", GRADIENTS, str(threads)],
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stride", [2, (1, 2), (3, 2)])
def test_it_computes_what_the_stock_module_does(stride, bias):
    stock = nn.Conv2d(5, 4, 1, stride, bias=bias, dtype=torch.float64)
    ours = copy.deepcopy(stock)
    use_safe_convolutions(ours)
    assert type(ours) is StridedPointwiseConv2d
    for shape in ((2, 5, 7, 8), (5, 6, 9)):
        images = torch.randn(shape, dtype=torch.float64)
        torch.testing.assert_close(ours(images), stock(images))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 4, 1, 2),
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3, 2),
        nn.Conv2d(4, 4, 1, 2, padding=1),
        nn.Conv2d(4, 4, 1, 2, groups=2),
        nn.ConvTranspose2d(4, 4, 1, 2),
    ],
)
def test_others_stay_as_they_are(layer):
    kind = type(layer)
    use_safe_convolutions(layer)
    assert type(layer) is kind


def test_attributes_may_be_set_as_numbers():
    layer = nn.Conv2d(4, 4, 1, 2)
    layer.stride = 1
    use_safe_convolutions(layer)
    assert type(layer) is nn.Conv2d
    images = torch.randn(1, 4, 6, 6)
    layer.stride, layer.padding = 3, 0
    expected = layer(images)
    use_safe_convolutions(layer)
    assert type(layer) is StridedPointwiseConv2d
    torch.testing.assert_close(layer(images), expected)


def test_what_is_loaded_is_a_convolution_still():
    full = nn.Sequential(nn.Conv2d(4, 6, 1, 2, padding="valid"))
    small = load_submodel(full, full.state_dict())
    assert isinstance(small[0], nn.Conv2d)
    assert type(small[0]) is StridedPointwiseConv2d
    assert type(full[0]) is nn.Conv2d
    again = copy.deepcopy(small)
    images = torch.randn(1, 4, 5, 5)
    assert torch.equal(again(images), small(images))
    assert small[0].stride == (2, 2)
    assert small.state_dict().keys() == full.state_dict().keys()
