"""The formula of a submodel's FLOPs gives what counting them gives."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from flwr_asyncdrop.submodel import (
    FlopFormula,
    LoraFlops,
    forward_flops,
    lora_plan,
    narrow,
    plan_blocks,
    plan_submodels,
)
from tests.runs import residual_mlp
from tests.submodel.lora.models import Own
from tests.submodel.networks import (
    ConvFlatten,
    DenseNet,
    Encoder,
    Gated,
    Recurrent,
    ResidualNet,
    SeparableConv,
    Split,
    Tied,
    Upsampling,
    images,
    seeded,
    tokens,
    vectors,
)
from tests.submodel.silencing import random_keep
from tests.submodel.test_equivalence import FEW, NETWORKS, SEEDS

CASES = {
    "one convolution": (ConvFlatten, images(1, 4)),
    "residual": (partial(ResidualNet, [8, 12], 10), images(1, 4)),
    "lstm": (Recurrent, tokens()),
    "two-layer gru": (partial(Recurrent, nn.GRU, num_layers=2), tokens()),
    "separable": (SeparableConv, images()),
    "concatenated": (DenseNet, images()),
    "tied": (Tied, tokens()),
    "attention": (Encoder, tokens()),
    "gated": (Gated, vectors()),
    "split": (Split, vectors()),
    "transposed": (Upsampling, vectors()),
}


def counted(model, inputs, shapes):
    return forward_flops(narrow(model, shapes), inputs)


def agrees(formula, plan, count, seed):
    keep = random_keep(plan, seed)
    assert formula(keep) == sum(count(plan.shapes_of(plan.indices(keep))))


@pytest.mark.parametrize("name", CASES)
def test_it_gives_what_is_counted(name):
    build, inputs = CASES[name]
    model = seeded(build)
    plan = plan_submodels(model, inputs)
    count = partial(counted, model, inputs)
    formula = FlopFormula.of(plan, count)
    assert formula is not None
    assert formula(plan.full_keep()) == sum(forward_flops(model, inputs))
    for seed in range(10):
        agrees(formula, plan, count, seed)


@FEW
@given(NETWORKS, SEEDS)
def test_it_does_for_any_network_or_there_is_none(case, seed):
    model, inputs = case
    plan = plan_submodels(model, inputs)
    count = partial(counted, model, inputs)
    if formula := FlopFormula.of(plan, count):
        agrees(formula, plan, count, seed)


def test_by_hand():
    """Two products: 5 inputs to n units, and n to 3 outputs, of 2 vectors."""
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    inputs = vectors(5, 2)
    plan = plan_submodels(model, inputs)
    formula = FlopFormula.of(plan, partial(counted, model, inputs))
    for n in range(1, 9):
        assert formula((torch.arange(n),)) == 2 * 2 * (5 * n + n * 3)


def test_adapters_are_counted_forward_and_backward():
    model = seeded(lambda: nn.Sequential(Own(), nn.Linear(5, 6), Own()))
    inputs = vectors(6)
    pairs = [("0.down", "0.up"), ("2.down", "2.up")]
    plan = lora_plan(model, inputs, pairs=pairs)
    steps = LoraFlops(plan, model, inputs)
    formula = FlopFormula.of(plan, steps.flops)
    for seed in range(10):
        agrees(formula, plan, steps.flops, seed)


class TestThereIsNone:
    """Where some submodel does not follow it."""

    def plan(self, width=8):
        model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, 3))
        return plan_submodels(model, vectors())

    def test_of_three_sizes(self):
        def cubes(shapes):
            return [shapes["0.weight"][0] ** 3]

        assert FlopFormula.of(self.plan(), cubes) is None

    def test_with_other_operations_by_width(self):
        def one_more(shapes):
            width = shapes["0.weight"][0]
            return [width] * (1 + (width > 4))

        assert FlopFormula.of(self.plan(), one_more) is None

    def test_if_the_full_model_takes_more(self):
        def whole(shapes):
            return [shapes["0.weight"][0] + (shapes["0.weight"][0] == 8)]

        assert FlopFormula.of(self.plan(), whole) is None

    def test_if_the_smallest_takes_more(self):
        def least(shapes):
            return [shapes["0.weight"][0] + (shapes["0.weight"][0] == 1)]

        assert FlopFormula.of(self.plan(), least) is None

    def test_if_some_submodel_does_not_run(self):
        def fails(shapes):
            if shapes["0.weight"][0] < 8:
                raise ValueError("too small")
            return [8]

        assert FlopFormula.of(self.plan(), fails) is None

    def test_if_the_first_sample_takes_nothing(self):
        sizes = []

        def grows(shapes):
            sizes.append(shapes)
            return [len(sizes) - 1]

        assert FlopFormula.of(self.plan(), grows) is None

    def test_if_groups_are_too_small_to_be_told_apart(self):
        layers = [nn.Linear(5, 2), *(nn.Linear(2, 2) for _ in range(30))]
        model = nn.Sequential(*layers, nn.Linear(2, 3))
        plan = plan_submodels(model, vectors())
        assert FlopFormula.of(plan, lambda shapes: [1]) is None

    def test_of_blocks(self):
        model = residual_mlp()
        plan = plan_blocks(model, vectors(4))
        count = partial(counted, model, vectors(4))
        assert FlopFormula.of(plan, count) is None


@given(st.fractions(1, 9))
def test_a_number_that_is_not_whole_is_none(flops):
    formula = FlopFormula({(): flops}, (8,))
    assert formula((torch.arange(3),)) == (flops if flops.denominator == 1 else None)
