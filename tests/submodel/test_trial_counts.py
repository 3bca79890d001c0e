"""Which units the trial submodels of a plan keep."""

import pytest
import torch

from flwr_asyncdrop.submodel import UnitGroup
from flwr_asyncdrop.submodel.verification.trial_counts import (
    counts_to_keep,
    even_part,
    levels_of,
    some_units,
)


def internal(size, least=1):
    return UnitGroup("a", size, "internal", least=least)


@pytest.mark.parametrize("many", [1, 3, 4, 5, 9, 17])
def test_groups_of_one_size_keep_other_numbers(many):
    rounds = counts_to_keep([internal(8)] * many)
    codes = set(zip(*rounds, strict=True))
    assert len(codes) == many
    assert max(rounds[0]) < 8
    assert {count % 2 for code in codes for count in code if count < 8} == {1}
    assert len(rounds) == (1 if many <= 3 else 2 if many <= 12 else 3)


@pytest.mark.parametrize("size", [2, 3])
def test_groups_of_two_levels_keep_other_numbers(size):
    rounds = counts_to_keep([internal(size)] * 5)
    assert len(set(zip(*rounds, strict=True))) == 5
    assert set(rounds[0]) == {1}


def test_groups_that_have_to_keep_many():
    groups = [UnitGroup("experts", 8, "expert", least=6), internal(2), internal(1)]
    assert counts_to_keep(groups) == [[7, 1, 1]]
    assert len(counts_to_keep([internal(1)] * 9)) == 1


@pytest.mark.parametrize(
    ("group", "levels", "even"),
    [
        (internal(1), [1], 1),
        (internal(2), [1, 2], 2),
        (internal(3), [1, 3], 2),
        (internal(4), [3, 4], 2),
        (internal(8), [3, 5, 7, 8], 4),
        (internal(16), [5, 7, 9, 11, 13, 15, 16], 8),
        (internal(8, least=6), [7, 8], 6),
        (internal(8, least=8), [8], 8),
    ],
)
def test_odd_counts_from_a_quarter_on_and_an_even_one(group, levels, even):
    assert levels_of(group) == levels
    assert even_part(group) == even


@pytest.mark.parametrize("number", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_first_and_the_last_unit_go_first(size, number):
    generator = torch.Generator().manual_seed(0)
    goes = [0, size - 1] if number % 2 else [size - 1, 0]
    for count in range(1, size + 1):
        units = some_units(size, count, number, generator).tolist()
        assert units == sorted({*units} & {*range(size)})
        assert len(units) == count
        assert not {*units} & {*goes[: size - count]}
