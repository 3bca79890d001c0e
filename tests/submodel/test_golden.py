"""Index maps worked out by hand."""

import torch
from torch import nn

from flwr_asyncdrop.submodel import UnitGroup, plan_submodels
from tests.submodel.networks import Block, ConvFlatten, images, vectors


def listed(axes):
    return {
        name: {dim: units.tolist() for dim, units in dims.items()}
        for name, dims in axes.items()
    }


def test_mlp():
    model = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2), nn.Linear(2, 4))

    plan = plan_submodels(model, vectors(5))

    assert plan.groups == (UnitGroup("0", 3, "internal"), UnitGroup("2", 2, "internal"))
    assert plan.offsets == (0, 3)
    assert listed(plan.axes) == {
        "0.weight": {0: [0, 1, 2]},
        "0.bias": {0: [0, 1, 2]},
        "2.weight": {0: [3, 4], 1: [0, 1, 2]},
        "2.bias": {0: [3, 4]},
        "3.weight": {1: [3, 4]},
    }
    assert plan.left_out == {"3": "part of the model's output"}
    assert plan.parameters == set(model.state_dict())

    indices = plan.indices((torch.tensor([0, 2]), torch.tensor([1])))

    assert listed(indices) == {
        "0.weight": {0: [0, 2]},
        "0.bias": {0: [0, 2]},
        "2.weight": {0: [1], 1: [0, 2]},
        "2.bias": {0: [1]},
        "3.weight": {1: [1]},
    }
    assert plan.shapes_of(indices) == {
        "0.weight": (2, 5),
        "0.bias": (2,),
        "2.weight": (1, 2),
        "2.bias": (1,),
        "3.weight": (4, 1),
        "3.bias": (4,),
    }


def test_channels_that_are_flattened():
    plan = plan_submodels(ConvFlatten(), images(1, 4))

    assert plan.groups == (UnitGroup("conv", 2, "internal"),)
    assert listed(plan.axes) == {
        "conv.weight": {0: [0, 1]},
        "conv.bias": {0: [0, 1]},
        "head.weight": {1: [0, 0, 0, 0, 1, 1, 1, 1]},
    }
    assert listed(plan.indices((torch.tensor([1]),))) == {
        "conv.weight": {0: [1]},
        "conv.bias": {0: [1]},
        "head.weight": {1: [4, 5, 6, 7]},
    }


class OneBlock(nn.Module):
    """Two channels in the stream, three inside the block."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 2, 1, bias=False)
        self.block = Block(2, 2, inner=3)
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.block(self.stem(x)).mean((2, 3)))


STREAM, INSIDE = [0, 1], [2, 3, 4]


def test_residual_block():
    plan = plan_submodels(OneBlock(), images(1, 4))

    assert plan.groups == (
        UnitGroup("stem", 2, "residual"),
        UnitGroup("block.conv1", 3, "internal"),
    )
    norm1 = {
        f"block.bn1.{name}": {0: INSIDE}
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    norm2 = {
        f"block.bn2.{name}": {0: STREAM}
        for name in ("weight", "bias", "running_mean", "running_var")
    }
    assert listed(plan.axes) == {
        "stem.weight": {0: STREAM},
        "block.conv1.weight": {0: INSIDE, 1: STREAM},
        **norm1,
        "block.conv2.weight": {0: STREAM, 1: INSIDE},
        **norm2,
        "head.weight": {1: STREAM},
    }


def test_residual_block_without_its_stream():
    plan = plan_submodels(OneBlock(), images(1, 4), scope="internal")

    assert plan.groups == (UnitGroup("block.conv1", 3, "internal"),)
    assert listed(plan.axes) == {
        "block.conv1.weight": {0: [0, 1, 2]},
        "block.bn1.weight": {0: [0, 1, 2]},
        "block.bn1.bias": {0: [0, 1, 2]},
        "block.bn1.running_mean": {0: [0, 1, 2]},
        "block.bn1.running_var": {0: [0, 1, 2]},
        "block.conv2.weight": {1: [0, 1, 2]},
    }
    assert "residual stream" in plan.left_out["stem"]


def test_lstm_gates_follow_their_hidden_unit():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.LSTM(3, 2, batch_first=True)
            self.head = nn.Linear(2, 2)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])

    plan = plan_submodels(Net(), torch.randn(1, 4, 3))

    assert plan.groups == (UnitGroup("rnn", 2, "internal"),)
    gates = [0, 1] * 4
    assert listed(plan.axes) == {
        "rnn.weight_ih_l0": {0: gates},
        "rnn.weight_hh_l0": {0: gates, 1: [0, 1]},
        "rnn.bias_ih_l0": {0: gates},
        "rnn.bias_hh_l0": {0: gates},
        "head.weight": {1: [0, 1]},
    }
