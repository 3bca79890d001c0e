"""Successive halving by hand: who runs for how long, who goes on, who wins."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.cli.halving import (
    Result,
    Rung,
    at_edge,
    best,
    candidates,
    rungs,
)


def test_rungs_by_hand():
    assert rungs(90, 9, 3, 3) == [Rung(10, 9), Rung(30, 3), Rung(90, 1)]
    assert rungs(100, 10, 3, 3) == [Rung(12, 10), Rung(34, 4), Rung(100, 2)]
    assert rungs(5, 4, 2, 1) == [Rung(5, 4)]
    assert rungs(1, 1, 2, 3) == 3 * [Rung(1, 1)]


@given(
    st.integers(1, 10**6), st.integers(1, 1000), st.integers(2, 10), st.integers(1, 10)
)
def test_runs_get_longer_and_fewer(num_rounds, count, eta, number):
    found = rungs(num_rounds, count, eta, number)
    assert (found[0].candidates, found[-1].num_rounds) == (count, num_rounds)
    lengths = [rung.num_rounds for rung in found]
    counts = [rung.candidates for rung in found]
    assert lengths == sorted(lengths)
    assert counts == sorted(counts, reverse=True)
    assert min(lengths + counts) >= 1


def test_all_combinations_in_the_order_of_the_grid():
    assert candidates({"lr": [0.1, 0.2], "k": [1, 2]}, 4) == [
        {"lr": 0.1, "k": 1},
        {"lr": 0.1, "k": 2},
        {"lr": 0.2, "k": 1},
        {"lr": 0.2, "k": 2},
    ]
    assert candidates({}, 4) == [{}]


def test_more_than_allowed_are_drawn_the_same_ones_each_time():
    search = {"a": list(range(10)), "b": list(range(10))}
    drawn = candidates(search, 7)
    assert drawn == candidates(search, 7)
    assert len({tuple(each.items()) for each in drawn}) == 7
    grid = candidates(search, 100)
    assert [grid.index(each) for each in drawn] == sorted(map(grid.index, drawn))


def result(*finals, lr=0.1):
    return Result({"lr": lr}, finals)


def test_the_mean_over_seeds_decides_and_the_first_of_equals():
    results = [result(0.5, 0.7), result(0.7, 0.5), result(0.9, 0.2), result(0.61, 0.6)]
    assert best(results, 2) == [results[3], results[0]]


def test_one_that_failed_or_has_no_number_is_never_chosen():
    results = [result(0.9, None), result(math.nan, 0.9), result(-5.0, -7.0)]
    assert best(results, 3) == [results[2]]
    assert best(results[:2], 3) == []


@pytest.mark.parametrize(
    ("chosen", "edges"),
    [(0.1, ["lr"]), (0.2, []), (0.4, ["lr"])],
)
def test_a_choice_at_the_edge_is_said(chosen, edges):
    search = {"lr": [0.2, 0.1, 0.4], "only": [3], "flag": [True, False], "name": ["a"]}
    values = {"lr": chosen, "only": 3, "flag": True, "name": "a"}
    assert at_edge(values, search) == edges
