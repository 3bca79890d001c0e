"""Verification sees through plans that are wrong."""

import re

import pytest
import torch
from torch import nn

from flwr_asyncdrop.exceptions import UnsupportedModelError
from flwr_asyncdrop.submodel import Plan, UnitGroup, plan_submodels
from flwr_asyncdrop.submodel.kernels import plain_kernels
from flwr_asyncdrop.submodel.probing.probe import make_probe
from flwr_asyncdrop.submodel.types import Example
from flwr_asyncdrop.submodel.verification import verify
from flwr_asyncdrop.submodel.verification.verify import bisect, find_faults
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


@pytest.mark.parametrize("size", [2, 8])
def test_units_whose_order_shows_though_dropping_does_not(size):
    """What units add up to, one after the other, is the same with zeros in between."""

    class Cumulates(nn.Sequential):
        def forward(self, x):
            return self[1](self[0](x).cumsum(1))

    model = seeded(lambda: Cumulates(nn.Linear(5, size), nn.Linear(size, 2)))
    units = torch.arange(size)
    plan = Plan(
        groups=(UnitGroup("0", size, "internal"),),
        shapes={name: tuple(t.shape) for name, t in model.state_dict().items()},
        axes={"0.weight": {0: units}, "0.bias": {0: units}, "1.weight": {1: units}},
        parameters=frozenset(model.state_dict()),
    )

    with plain_kernels():
        faults = find_faults(make_probe(model, [Example((vectors(),))]), plan)

    assert "not interchangeable" in faults[0]


class HardCoded(nn.Module):
    """Blocks whose code has a width as a number, beside layers that have none."""

    passes = 0

    def __init__(self):
        super().__init__()
        sizes = (5, 6), (6, 5), (5, 4), (4, 5)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(*each) for each in sizes) for _ in range(6)
        )

    def forward(self, x):
        HardCoded.passes += 1
        for wide, back, up, down in self.blocks:
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
    assert [group.name for group in found.groups] == [f"blocks.{n}.2" for n in range(6)]
    assert found.groups == expected.groups
    assert found.left_out == expected.left_out
    for name, dims in expected.axes.items():
        for dim, units in dims.items():
            assert torch.equal(found.axes[name][dim], units)


@pytest.mark.parametrize("width", [4, 6, 8, 12, 16])
def test_code_that_treats_an_even_part_of_even_many_units_in_another_way(width):
    """Odd counts were tried alone, and all units."""

    class Even(nn.Sequential):
        def forward(self, x):
            hidden = self[0](x)
            count = hidden.shape[1]
            return self[1](hidden * (2 if count % 2 == 0 and count < width else 1))

    model = seeded(lambda: Even(nn.Linear(5, width), nn.Linear(width, 3)))
    with pytest.raises(UnsupportedModelError, match="no units of Even can be dropped"):
        plan_submodels(model, vectors())


@pytest.mark.parametrize("mode", [True, False])
def test_code_that_treats_few_units_of_a_second_layer_in_another_way(mode):
    """The first round keeps another number of each layer of one size."""

    class Few(nn.Sequential):
        def forward(self, x):
            hidden = self[1](self[0](x).relu()).relu()
            others = hidden.shape[1] == 3 and self.training is mode
            return self[2](hidden) + others  # gradients are the same

    layers = nn.Linear(5, 8), nn.Linear(8, 8), nn.Linear(8, 3)
    plan = plan_submodels(seeded(lambda: Few(*layers)), vectors())
    assert [group.name for group in plan.groups] == ["0"]


class ReturnsItsOwn(nn.Module):
    """Returns a tensor of its own beside the output, as CLIP does its logit scale."""

    def __init__(self, own):
        super().__init__()
        self.first, self.last = nn.Linear(5, 8), nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("mean", torch.zeros(3))
        self.own = own

    def forward(self, x):
        out = self.last(self.first(x).relu()) * self.scale
        if self.own == "a buffer":
            with torch.no_grad():
                self.mean.mul_(0.5).add_(out[0])
        return out, OWN[self.own](self)


OWN = {
    "a parameter": lambda model: model.scale,
    "a bias": lambda model: model.last.bias,
    "a view": lambda model: model.scale[1:],
    "a buffer": lambda model: model.mean,
}


@pytest.mark.parametrize("own", OWN)
def test_a_model_may_return_its_own_tensors(own):
    """They were compared after they had been put back, or swapped."""
    plan = plan_submodels(seeded(lambda: ReturnsItsOwn(own)), vectors())
    assert [group.name for group in plan.groups] == ["first"]


def test_what_a_pass_writes_on_a_buffer_that_is_returned_is_compared():
    class Writes(ReturnsItsOwn):
        def forward(self, x):
            hidden = self.first(x)
            out = self.last(hidden.relu())
            if self.training:
                return out, out[0]
            with torch.no_grad():
                self.mean.copy_(out[0] * (8 / hidden.shape[1]))
            return out, self.mean.view(-1)

    with pytest.raises(UnsupportedModelError, match="no units of Writes can be drop"):
        plan_submodels(seeded(lambda: Writes("a buffer")), vectors())


STILL = {
    "a dead unit": lambda out: torch.relu(out - 1e3),
    "clamped": lambda out: (out + 1e3).clamp(0, 1),
    "a sign": lambda out: (out + 1e3).sign(),
    "a decision": lambda out: (out > 1e3).double(),
}


@pytest.mark.parametrize("name", STILL)
def test_outputs_that_do_not_follow_the_weights_verify_nothing(name):
    class Still(nn.Sequential):
        def forward(self, x):
            hidden = self[0](x)
            return STILL[name](self[1](hidden * (4 / hidden.shape[1])))

    with pytest.raises(UnsupportedModelError, match="no output follows the weights"):
        plan_submodels(Still(nn.Linear(5, 4), nn.Linear(4, 3)), vectors())


def test_a_choice_by_number_is_an_output_that_is_compared():
    class Chooses(nn.Sequential):
        def forward(self, x):
            return super().forward(x).argmax(1)

    plan = plan_submodels(
        seeded(lambda: Chooses(nn.Linear(5, 4), nn.Linear(4, 3))), vectors()
    )
    assert [group.name for group in plan.groups] == ["0"]


class ByTheLargest(nn.Module):
    """Its code goes by the largest bias, which zeroed units have a word in.

    Where none of those that are kept is above zero, a narrower model gives another
    output. So it depends on what is kept.
    """

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 12), nn.Linear(12, 12)
        self.last = nn.Linear(12, 2)

    def forward(self, x):
        x = (self.first(x) + self.first.bias.max()).relu()
        return self.last(self.second(x).relu())


@pytest.mark.parametrize("seed", [14, 15, 26, 29])
def test_a_failure_is_not_forgotten_as_other_units_pass(seed, monkeypatch):
    torch.manual_seed(seed)
    model = ByTheLargest()
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    units = torch.arange(12)
    axes = {
        "first.weight": {0: units},
        "first.bias": {0: units},
        "second.weight": {0: units + 12, 1: units},
        "second.bias": {0: units + 12},
        "last.weight": {1: units + 12},
    }
    groups = tuple(UnitGroup(name, 12, "internal") for name in ("first", "second"))
    plan = Plan(groups, shapes, axes, frozenset(shapes))
    failed, fault = [], verify._Trial.fault

    def noted(trial, tried):
        why = fault(trial, tried)
        if why is not None:
            failed.append(tried)
        return why

    monkeypatch.setattr(verify._Trial, "fault", noted)
    with plain_kernels():
        found = find_faults(make_probe(model, [Example((vectors(),))]), plan)
    assert bool(found) == bool(failed)
    assert found.keys() <= {0}


class TestBisect:
    """Those that are left have passed together, and no failure is without a reason."""

    @pytest.mark.parametrize(
        ("wrong", "left"),
        [
            ([], "abcdefg"),
            (["c"], "abdefg"),
            (["a", "g"], "bcdef"),
            (["ag"], "abc"),
            (["abcdefg"], "abc"),
            (["b", "ad", "eg"], "ac"),
            (["b", "ac"], "adefg"),
        ],
    )
    def test_items_that_fail_alone_or_together(self, wrong, left):
        def fault(items):
            return next((w for w in wrong if set(w) <= {*items}), None)

        found = bisect("abcdefg", fault)
        assert "".join(i for i in "abcdefg" if i not in found) == left
        assert fault(left) is None

    @pytest.mark.parametrize("known", ["", "it failed"])
    def test_a_failure_that_does_not_come_again(self, known):
        """By other draws, or as the model does not train in that precision any more."""
        says = iter([] if known else ["it failed"])
        found = bisect("abcd", lambda items: next(says, None), known)
        assert found == dict.fromkeys("cd", "it failed")
