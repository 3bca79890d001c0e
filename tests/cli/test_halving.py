"""Successive halving by hand: who runs for how long, who goes on, who wins."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.cli.halving import (
    Result,
    Rung,
    at_edge,
    best,
    candidates,
    rungs,
    tied,
)
from flwr_asyncdrop.cli.race import FinalMetric
from flwr_asyncdrop.exceptions import ConfigError


def test_rungs_by_hand():
    assert rungs(9, 3, 3) == [Rung(9, 9), Rung(3, 3), Rung(1, 2)]
    assert rungs(3, 3, 2) == [Rung(3, 3), Rung(1, 2)]
    assert rungs(10, 3, 3) == [Rung(9, 10), Rung(3, 4), Rung(1, 2)]
    assert rungs(4, 2, 1) == [Rung(1, 4)]
    assert rungs(9, 3, 2, last=3) == [Rung(9, 9), Rung(3, 3)]
    assert rungs(1, 2, 3) == [Rung(4, 1), Rung(2, 1), Rung(1, 1)]


def test_candidates_of_a_large_grid_are_drawn_without_making_it():
    search = {f"key-{number}": range(1000) for number in range(6)}
    drawn = candidates(search, 5)
    assert len({tuple(each.values()) for each in drawn}) == 5
    assert all(each.keys() == search.keys() for each in drawn)
    assert drawn == sorted(drawn, key=lambda each: tuple(each.values()))
    with pytest.raises(ConfigError, match="combinations are too many: search less"):
        candidates({**search, "more": range(100)}, 5)


def test_the_rounds_of_a_part_of_a_run_by_hand():
    def rounds(whole, division):
        config = RunConfig(num_rounds=whole)
        return FinalMetric().length(config, division)["num-rounds"]

    assert [rounds(90, part) for part in (9, 3, 1)] == [10, 30, 90]
    assert [rounds(100, part) for part in (9, 3, 1)] == [12, 34, 100]
    assert [rounds(1, part) for part in (9, 3, 1)] == [1, 1, 1]


@given(st.integers(1, 1000), st.integers(2, 10), st.integers(1, 10))
def test_runs_get_longer_and_fewer(count, eta, number):
    found = rungs(count, eta, number)
    assert (found[0].candidates, found[-1].division) == (count, 1)
    divisions = [rung.division for rung in found]
    counts = [rung.candidates for rung in found]
    assert divisions == sorted(divisions, reverse=True)
    assert counts == sorted(counts, reverse=True)
    assert min(divisions + counts) >= 1


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


def test_of_those_that_tie_the_best_mean_over_the_run_decides():
    ends, soon = result(0.70, lr=0.1), result(0.695, lr=0.2)
    late, low = result(0.698, lr=0.3), result(0.6, lr=0.4)
    results = [low, ends, soon, late]
    assert tied(results, 0.006) == [False, True, True, True]
    assert tied(results, 0.003) == [False, True, False, True]
    asked = [
        low,
        replace(ends, means=(0.1, 0.9)),
        replace(soon, means=(0.6, 0.6)),
        replace(late, means=(0.4, 0.4)),
    ]
    assert [each.values["lr"] for each in best(asked, 4)] == [0.2, 0.1, 0.3, 0.4]


def test_one_that_failed_does_not_tie():
    assert tied([result(None), result(0.5)], math.inf) == [True, True]
    assert tied([result(None), result(0.5)], 9.0) == [False, True]
    assert tied([result(math.nan), result(0.5)], 9.0) == [False, True]
    assert tied([result(-0.5), result(-0.49)], 0.02) == [True, True]


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
