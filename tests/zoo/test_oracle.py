"""The oracle finds what is wrong, and nothing else."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from flwr_asyncdrop.submodel import Plan, UnitGroup, declare_plan
from tests.zoo.comparing import difference
from tests.zoo.oracle import NotTakenError, WrongPlanError, check, random_kept
from tests.zoo.passes import Arguments


class Net(nn.Module):
    """Two layers; what is in between can be dropped, and is tampered with."""

    def __init__(self, between, trained=None, fill=None):
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 3)
        self.between, self.trained, self.fill = between, trained, fill

    def forward(self, x):
        way = self.trained if self.training and self.trained else self.between
        out = self.second(way(self.first(x)))
        if self.fill is not None:
            out = out.masked_fill(torch.tensor([True, False, False]), self.fill)
        return {"out": out, "count": 1}


def plan_of(model: nn.Module) -> Plan:
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    axes = {"first.weight": 0, "first.bias": 0, "second.weight": 1}
    plan = declare_plan(shapes, {"first": axes})
    return dataclasses.replace(plan, parameters=frozenset(shapes))


def judged(model: nn.Module, *, train: bool = False, batch: int = 2) -> None:
    plan = plan_of(model)
    for seed in range(3):
        given = Arguments((torch.randn(batch, 4),))
        check(model, plan, random_kept(plan, seed), given, train=train)


def centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


def compared_by_batch(x: Tensor) -> Tensor:
    return centred(x) if len(x) > 1 else x


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("fill", [None, -1e9, -math.inf])
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_right_plans_pass(train, fill, scale):
    model = Net(torch.tanh, fill=fill)
    with torch.no_grad():
        model.second.weight.mul_(scale)

    judged(model, train=train)


@pytest.mark.parametrize(
    "fill", [None, -1e9, -math.inf, torch.finfo(torch.float32).min]
)
def test_coupled_units_are_found_whatever_is_masked(fill):
    with pytest.raises(WrongPlanError, match=r"differ"):
        judged(Net(centred, fill=fill))


def test_a_part_that_is_a_billionth_is_found():
    with pytest.raises(WrongPlanError, match=r"differ"):
        judged(Net(lambda x: x + 1e-9 * x.sort(-1).values))


def test_what_only_training_does_is_found():
    model = Net(torch.tanh, trained=centred)

    judged(model)
    with pytest.raises(WrongPlanError, match=r"differ"):
        judged(model, train=True)


def test_what_only_batches_do_is_found():
    judged(Net(compared_by_batch), batch=1)
    with pytest.raises(WrongPlanError, match=r"differ"):
        judged(Net(compared_by_batch))


def test_wrong_gradients_are_found():
    class Straight(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient.flip(-1)

    with pytest.raises(WrongPlanError, match=r"first.weight: .* differ"):
        judged(Net(Straight.apply))


def test_submodels_that_do_not_run_are_found():
    with pytest.raises(WrongPlanError, match="does not run"):
        judged(Net(lambda x: x + torch.ones(6)))


def test_inputs_that_the_model_does_not_take():
    def single(x):
        if len(x) > 1:
            raise ValueError("one at a time")
        return x

    with pytest.raises(NotTakenError, match="one at a time"):
        judged(Net(single))


def test_dropped_experts_cannot_be_chosen():
    class Router(nn.Module):
        """Two of four experts, each a row of a matrix."""

        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(5, 4, bias=False)
            self.experts = nn.Parameter(torch.randn(4, 5))

        def forward(self, x):
            scores = self.gate(x).softmax(-1).topk(2)
            return (scores.values[..., None] * self.experts[scores.indices]).sum(-2)

    model = Router()
    plan = declare_plan(
        {"gate.weight": (4, 5), "experts": (4, 5)},
        {"gate": {"gate.weight": 0, "experts": 0}},
    )
    silent = (plan.groups[0], [torch.tensor([0, 2, 3])])
    experts = dataclasses.replace(plan, groups=(UnitGroup("gate", 4, "expert", 2),))
    given = Arguments((torch.randn(50, 5),))

    check(model, experts, silent[1], given, train=True)
    with pytest.raises(WrongPlanError):
        check(model, plan, silent[1], given, train=True)
    assert all(len(random_kept(experts, seed)[0]) >= 2 for seed in range(20))


@pytest.mark.parametrize(
    ("found", "expected", "same"),
    [
        ([1.0, 2.0], [1.0, 2.0], True),
        ([1.0, 2.0 + 1e-11], [1.0, 2.0], True),
        ([1.0, 2.0 + 1e-7], [1.0, 2.0], False),
        ([-1e9, 1.0, 2.001], [-1e9, 1.0, 2.0], False),
        ([-1e9, 1.0, 2.0], [-1e9, 1.0, 2.0], True),
        ([-math.inf, 1.0], [-math.inf, 1.0], True),
        ([-math.inf, 1.0], [math.inf, 1.0], False),
        ([-math.inf, 1.1], [-math.inf, 1.0], False),
        ([math.nan, 1.0], [math.nan, 1.0], True),
        ([1.0, math.nan], [1.0, 2.0], False),
        ([1e-9, 2e-9], [1e-9, 3e-9], False),
        ([1e-11, 3.0, 3.0], [2e-11, 3.0, 3.0], True),
        ([1e-9, 3.0, 3.0], [2e-9, 3.0, 3.0], False),
        ([0.0, 0.0], [0.0, 0.0], True),
        ([0.0, 1e-17], [0.0, 0.0], True),
    ],
)
def test_comparison_element_by_element(found, expected, same):
    tensors = (
        torch.tensor(values, dtype=torch.float64) for values in (found, expected)
    )

    assert (difference(*tensors) is None) == same


def test_rounding_is_allowed_where_it_matters():
    expected = torch.tensor([-1e9, 1.0, 2.0], dtype=torch.float64)
    shaken = expected + torch.tensor([1e-3, 0.0, 1e-6], dtype=torch.float64)

    def off(*by):
        moved = expected + torch.tensor(by, dtype=torch.float64)
        return difference(moved, expected, shaken=shaken)

    assert off(1e-3, 1e-6, 1e-6) is None
    assert off(0.0, 1e-3, 0.0) is not None
    assert off(0.0, 0.0, 1e-3) is not None
    assert off(0.1, 0.0, 0.0) is None  # a small part of it
    assert off(10.0, 0.0, 0.0) is not None


def test_other_shapes_and_whole_numbers():
    ones = torch.ones(2, dtype=torch.int64)

    assert difference(ones, ones) is None
    assert difference(ones + 1, ones) == "other whole numbers"
    assert difference(torch.ones(2), torch.ones(3)) == "shape (2,), not (3,)"
