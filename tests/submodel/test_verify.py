"""Verification sees through plans that are wrong."""

import re

import torch
from torch import nn

from flwr_asyncdrop.submodel import Plan, UnitGroup, plan_submodels, verify
from flwr_asyncdrop.submodel.kernels import plain_kernels
from flwr_asyncdrop.submodel.probe import make_probe
from flwr_asyncdrop.submodel.types import Example
from flwr_asyncdrop.submodel.verify import find_faults
from tests.submodel.networks import seeded, vectors


def net():
    return nn.Sequential(
        *(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU()),
        *(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)),
    )


def faults_with(**changes):
    """Return the faults of the right plan for `net` with some axes changed."""
    model = seeded(net)
    right = plan_submodels(model, vectors())
    assert [group.size for group in right.groups] == [4, 3]
    axes = {name: dict(dims) for name, dims in right.axes.items()}
    for name, units in changes.items():
        tensor, _, dim = name.removeprefix("_").rpartition("_")
        tensor = tensor.replace("_", ".", 1)
        axes[tensor].pop(int(dim))
        if units is not None:
            axes[tensor][int(dim)] = torch.tensor(units)
    plan = Plan(right.groups, right.shapes, axes, right.parameters)
    with plain_kernels():
        return find_faults(make_probe(model, [Example((vectors(),))]), plan)


def test_right_plan():
    assert faults_with() == {}


def test_columns_in_another_order():
    """Some orders of the units do not show it: then it is the dropping that does."""
    faults = faults_with(_3_weight_1=[3, 2, 1, 0])

    assert list(faults) == [0]
    assert re.search("not interchangeable|differs from the full one", faults[0])


def test_statistics_in_another_order_though_they_are_all_equal():
    """A new BatchNorm has means of 0 and variances of 1 throughout."""
    faults = faults_with(_1_running_var_0=[1, 0, 3, 2])

    assert list(faults) == [0]


def test_axis_that_was_forgotten():
    faults = faults_with(_5_weight_1=None)

    assert list(faults) == [1]
    assert "a narrower model does not run" in faults[1]


def test_units_that_are_not_the_models():
    """Rows of the output: reordered they show, dropped they change its shape."""
    model = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2))
    groups = (UnitGroup("1", 2, "internal"),)
    rows = torch.arange(2)
    plan = Plan(
        groups=groups,
        shapes={name: tuple(t.shape) for name, t in model.state_dict().items()},
        axes={"1.weight": {0: rows}, "1.bias": {0: rows}},
        parameters=frozenset(model.state_dict()),
    )

    with plain_kernels():
        faults = find_faults(make_probe(model, [Example((vectors(),))]), plan)

    assert list(faults) == [0]


class HardCoded(nn.Module):
    """Blocks whose code has a width as a number, beside layers that have none."""

    passes = 0

    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(5, 6) for _ in range(6))
        self.back = nn.ModuleList(nn.Linear(6, 5) for _ in range(6))
        self.up = nn.ModuleList(nn.Linear(5, 4) for _ in range(6))
        self.down = nn.ModuleList(nn.Linear(4, 5) for _ in range(6))

    def forward(self, x):
        HardCoded.passes += 1
        layers = zip(self.wide, self.back, self.up, self.down, strict=True)
        for wide, back, up, down in layers:
            x = x + back(wide(x).relu().view(-1, 3, 2).transpose(1, 2).reshape(-1, 6))
            x = x + down(up(x).relu())
        return x


def test_groups_that_do_not_run_cost_few_passes(monkeypatch):
    def plan():
        HardCoded.passes = 0
        return plan_submodels(seeded(HardCoded), vectors()), HardCoded.passes

    found, passes = plan()
    monkeypatch.setattr(verify._Trial, "failure", lambda *_: None)
    expected, more = plan()

    assert passes < 0.6 * more
    assert [group.name for group in found.groups] == [f"up.{n}" for n in range(6)]
    assert found.groups == expected.groups
    assert found.left_out == expected.left_out
    for name, dims in expected.axes.items():
        for dim, units in dims.items():
            assert torch.equal(found.axes[name][dim], units)
