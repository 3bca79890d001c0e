from dataclasses import replace

import pytest

from flwr_asyncdrop.observers.speed_groups import speed_group
from tests.observers.test_progress import ORDER


def tiers(num_ranks, most):
    orders = (replace(ORDER, rank=r, num_ranks=num_ranks) for r in range(num_ranks))
    return [speed_group(order, most) for order in orders]


def test_few_ranks_are_tiers():
    assert tiers(3, most=8) == [0, 1, 2]
    assert tiers(1, most=8) == [0]


def test_many_ranks_share_tiers_with_their_neighbours():
    assert tiers(8, most=4) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert tiers(7, most=3) == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("num_ranks", range(1, 40))
def test_every_tier_has_a_rank_and_their_sizes_differ_by_one(num_ranks):
    numbers = tiers(num_ranks, most=16)
    assert numbers == sorted(numbers)
    sizes = [numbers.count(tier) for tier in range(min(num_ranks, 16))]
    assert sum(sizes) == num_ranks
    assert max(sizes) - min(sizes) <= 1 <= min(sizes)
