"""Unit scores against a reference that visits one coordinate after the other."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ShapeError
from flwr_asyncdrop.masks import scores as scores_module
from flwr_asyncdrop.masks import unit_scores
from flwr_asyncdrop.submodel import Plan, UnitGroup


def plan_of(shapes, axes, sizes, buffers=()):
    return Plan(
        groups=tuple(UnitGroup(f"g{i}", n, "internal") for i, n in enumerate(sizes)),
        shapes=shapes,
        axes={
            name: {dim: torch.tensor(units) for dim, units in dims.items()}
            for name, dims in axes.items()
        },
        parameters=frozenset(shapes) - set(buffers),
    )


def naive_scores(plan, state, initial):
    totals = [0.0] * plan.num_units
    for name in plan.axes.keys() & plan.parameters:
        moved = (state[name].double() - initial[name].double()).abs()
        for place in itertools.product(*map(range, moved.shape)):
            dims = plan.axes[name].items()
            units = {int(ids[place[dim]]) for dim, ids in dims} - {-1}
            for unit in units:
                totals[unit] += float(moved[place])
    return torch.tensor(totals, dtype=torch.float64)


def random_states(plan, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            name: torch.randn(shape, generator=generator).to(dtype)
            for name, shape in plan.shapes.items()
        }
        for _ in range(2)
    ]


@st.composite
def plans(draw):
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    ids = st.integers(-1, sum(sizes) - 1)
    shapes, axes = {}, {}
    for name in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
        shapes[name] = tuple(shape)
        axes[name] = {
            dim: draw(st.lists(ids, min_size=size, max_size=size))
            for dim, size in enumerate(shape)
            if draw(st.booleans())
        }
    return plan_of(shapes, axes, sizes)


def test_by_hand():
    plan = plan_of(
        shapes={"in": (2, 2), "bias": (2,), "out": (1, 2), "mean": (2,)},
        axes={"in": {0: [0, 1]}, "bias": {0: [0, 1]}, "out": {1: [0, 1]}}
        | {"mean": {0: [0, 1]}},
        sizes=[2],
        buffers=["mean"],
    )
    initial = {name: torch.zeros(shape) for name, shape in plan.shapes.items()}
    state = {
        "in": torch.tensor([[1.0, -2.0], [0.0, 0.5]]),
        "bias": torch.tensor([0.0, -4.0]),
        "out": torch.tensor([[8.0, 16.0]]),
        "mean": torch.tensor([99.0, 99.0]),
    }
    [scores] = unit_scores(plan, state, initial)
    assert scores.tolist() == [1 + 2 + 8, 0.5 + 4 + 16]
    [rows_and_columns] = unit_scores(plan, state, initial, vectors=False)
    assert rows_and_columns.tolist() == [1 + 2 + 8, 0.5 + 16]


def test_row_and_column_of_two_groups_count_for_both():
    plan = plan_of({"w": (2, 1)}, {"w": {0: [0, 1], 1: [2]}}, sizes=[2, 1])
    state, initial = {"w": torch.tensor([[1.0], [2.0]])}, {"w": torch.zeros(2, 1)}
    rows, column = unit_scores(plan, state, initial)
    assert rows.tolist() == [1, 2]
    assert column.tolist() == [3]


def test_row_and_column_of_one_unit_count_the_diagonal_once():
    plan = plan_of({"w": (2, 2)}, {"w": {0: [0, 1], 1: [0, 1]}}, sizes=[2])
    state = {"w": torch.tensor([[1.0, 10.0], [100.0, 1000.0]])}
    [scores] = unit_scores(plan, state, {"w": torch.zeros(2, 2)})
    assert scores.tolist() == [1 + 10 + 100, 10 + 100 + 1000]


@given(plans(), st.integers(0, 99))
@settings(deadline=None)
def test_without_initial_values_it_is_the_distance_from_zero(plan, seed):
    state, _ = random_states(plan, seed=seed)
    zeros = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    norms = torch.cat(unit_scores(plan, state, None))
    assert torch.equal(norms, torch.cat(unit_scores(plan, state, zeros)))


@given(plans(), st.integers(0, 99))
@settings(deadline=None)
def test_equals_reference(plan, seed):
    state, initial = random_states(plan, seed=seed)
    scores = torch.cat(unit_scores(plan, state, initial))
    torch.testing.assert_close(
        scores, naive_scores(plan, state, initial), rtol=1e-5, atol=1e-5
    )


def test_double_precision_counts():
    plan = plan_of({"w": (2,)}, {"w": {0: [0, 1]}}, sizes=[2])
    initial = {"w": torch.ones(2, dtype=torch.float64)}
    moved = {"w": initial["w"] + torch.tensor([0.0, 2.0**-40])}
    (scores,) = unit_scores(plan, moved, initial)
    assert scores.tolist() == [0.0, 2.0**-40]


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16]
)
def test_many_blocks_of_every_dtype(monkeypatch, dtype):
    monkeypatch.setattr(scores_module, "_BLOCK", 64)
    axes = {"w": {0: list(range(13)), 1: list(range(13, 20))}}
    plan = plan_of({"w": (13, 7, 3)}, axes, sizes=[13, 7])
    state, initial = random_states(plan, dtype)
    scores = torch.cat(unit_scores(plan, state, initial))
    torch.testing.assert_close(
        scores, naive_scores(plan, state, initial), rtol=1e-6, atol=0
    )


def test_same_bits_on_one_and_two_threads():
    axes = {"w": {0: list(range(256)), 1: list(range(256, 512))}}
    plan = plan_of({"w": (256, 256, 3, 3)}, axes, sizes=[256, 256])
    state, initial = random_states(plan)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(torch.cat(unit_scores(plan, state, initial)))
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)


def test_one_score_a_unit_and_zero_at_the_start():
    plan = plan_of({"w": (5,)}, {"w": {0: [0, 1, 2, 3, 4]}}, sizes=[3, 2])
    state, _ = random_states(plan)
    scores = unit_scores(plan, state, state)
    assert [score.tolist() for score in scores] == [[0, 0, 0], [0, 0]]


def test_parameters_that_need_gradients():
    plan = plan_of({"w": (2,)}, {"w": {0: [0, 1]}}, sizes=[2])
    state = {"w": torch.nn.Parameter(torch.ones(2))}
    [scores] = unit_scores(plan, state, {"w": torch.zeros(2)})
    assert scores.tolist() == [1, 1]


@pytest.mark.parametrize(
    ("state", "cause"),
    [({}, "w is nothing"), ({"w": torch.zeros(1)}, r"w is \(1,\) .*\(2,\)")],
)
def test_states_that_do_not_fit(state, cause):
    plan = plan_of({"w": (2,)}, {"w": {0: [0, 1]}}, sizes=[2])
    whole = {"w": torch.zeros(2)}
    with pytest.raises(ShapeError, match=cause):
        unit_scores(plan, state, whole)
    with pytest.raises(ShapeError, match=cause):
        unit_scores(plan, whole, state)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("columns", [(0, 1), (2, 3)])  # of the same units, and not
def test_both_parts_of_complex_parameters_count(dtype, columns):
    axes = {"w": {0: [0, 1], 1: list(columns)}}
    plan = plan_of({"w": (2, 2)}, axes, [2, 2])
    zeros = {"w": torch.zeros(2, 2, dtype=dtype)}
    state = {"w": torch.tensor([[3 + 4j, 2j], [0, -1]], dtype=dtype)}
    first, second = unit_scores(plan, state, zeros)
    assert first.tolist() == ([7, 3] if columns == (0, 1) else [7, 1])
    assert second.tolist() == ([0, 0] if columns == (0, 1) else [5, 3])
    for with_zero, without in zip(
        unit_scores(plan, state, zeros), unit_scores(plan, state, None), strict=True
    ):
        assert torch.equal(with_zero, without)
