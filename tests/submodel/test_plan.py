"""The plan turns kept units into kept positions, and refuses what does not fit."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.submodel import Plan, UnitGroup, extract, plan_submodels
from flwr_asyncdrop.submodel.planning import leave_out
from tests.submodel.networks import ResidualNet, images, seeded
from tests.submodel.silencing import random_keep

PLAN = Plan(
    groups=(UnitGroup("a", 3, "internal"), UnitGroup("b", 2, "residual")),
    shapes={"a.weight": (3, 4), "b.weight": (5, 6), "steps": ()},
    axes={
        "a.weight": {0: torch.tensor([0, 1, 2])},
        "b.weight": {
            0: torch.tensor([3, -1, 4, -1, 3]),
            1: torch.tensor([0, 0, 1, 1, 2, 2]),
        },
    },
    parameters=frozenset({"a.weight", "b.weight"}),
    left_out={"c": "it makes the output", "d": "it makes the output"},
)


def test_undroppable_positions_are_always_kept():
    indices = PLAN.indices((torch.tensor([0, 1, 2]), torch.tensor([1])))

    assert {n: {d: k.tolist() for d, k in i.items()} for n, i in indices.items()} == {
        "b.weight": {0: [1, 2, 3]}
    }


def test_full_keep_narrows_nothing():
    assert PLAN.indices(PLAN.full_keep()) == {}
    assert PLAN.shapes_of({}) == PLAN.shapes


@given(st.integers(0, 10_000))
def test_indices_equal_a_search_position_by_position(seed):
    keep = random_keep(PLAN, seed)
    kept = {-1} | {
        offset + unit
        for offset, units in zip(PLAN.offsets, keep, strict=True)
        for unit in units.tolist()
    }

    indices = PLAN.indices(keep)

    for name, dims in PLAN.axes.items():
        for dim, units in dims.items():
            expected = [k for k, unit in enumerate(units.tolist()) if unit in kept]
            if len(expected) == len(units):
                assert dim not in indices.get(name, {})
            else:
                assert indices[name][dim].tolist() == expected
                assert PLAN.shapes_of(indices)[name][dim] == len(expected)


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ((torch.tensor([0]),), "keep has 1 entries but the plan has 2 groups"),
        ((torch.tensor([0]), torch.tensor([0, 2])), r"of b lie in 0\.\.2"),
        ((torch.tensor([-1, 1]), torch.tensor([0])), r"of a lie in -1\.\.1"),
        ((torch.tensor([1, 0]), torch.tensor([0])), "of a must be a non-empty asc"),
        ((torch.tensor([1, 1]), torch.tensor([0])), "of a must be a non-empty asc"),
        ((torch.empty(0).long(), torch.tensor([0])), "of a must be a non-empty asc"),
        ((torch.tensor([0.0]), torch.tensor([0])), "not torch.float32"),
        ((torch.tensor(0), torch.tensor([0])), r"of shape \(\)"),
        (
            ([0, 1], torch.tensor([0])),
            "of a are a list: give an ascending int64 tensor",
        ),
        ((torch.tensor([0]).numpy(), torch.tensor([0])), "of a are a ndarray: give"),
    ],
)
def test_keep_that_does_not_fit(keep, message):
    with pytest.raises(ShapeError, match=message):
        PLAN.indices(keep)


def test_report():
    lines = PLAN.report().splitlines()

    assert lines[1].split() == ["a", "3", "internal", "97.7%"]
    assert lines[2].split() == ["b", "2", "residual", "41.9%"]  # 18 of 43
    assert lines[3:] == ["whole (it makes the output): c, d"]
    assert str(PLAN) == PLAN.report()


def test_leaving_a_group_out_numbers_the_others_anew():
    plan = leave_out(PLAN, {0: "because"})

    assert plan.groups == PLAN.groups[1:]
    assert {n: list(dims) for n, dims in plan.axes.items()} == {"b.weight": [0]}
    assert plan.axes["b.weight"][0].tolist() == [0, -1, 1, -1, 0]
    assert plan.left_out == {**PLAN.left_out, "a": "because"}
    assert len(PLAN.groups) == 2


def test_plan_pickles():
    model = seeded(lambda: ResidualNet([3, 4], 3))
    plan = plan_submodels(model, images(1, 4))
    keep = random_keep(plan, seed=1)
    sub = extract(model.state_dict(), plan.indices(keep))

    copied = pickle.loads(pickle.dumps(plan))  # noqa: S301 (just pickled)

    again = extract(model.state_dict(), copied.indices(keep))
    assert copied.groups == plan.groups
    assert all(torch.equal(again[name], sub[name]) for name in sub)
    assert {n: tuple(t.shape) for n, t in sub.items()} == copied.shapes_of(
        copied.indices(keep)
    )
