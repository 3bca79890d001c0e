import pytest

from flwr_asyncdrop.observers.speed_groups import speed_group
from tests.observers.orders import order_of


def groups(num_ranks, most):
    return [speed_group(order_of(r, num_ranks), most) for r in range(num_ranks)]


def test_few_ranks_are_groups():
    assert groups(3, most=8) == [0, 1, 2]
    assert groups(1, most=8) == [0]


def test_many_ranks_share_groups_with_their_neighbours():
    assert groups(8, most=4) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert groups(7, most=3) == [0, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize("num_ranks", range(1, 40))
def test_every_group_has_a_rank_and_their_sizes_differ_by_one(num_ranks):
    numbers = groups(num_ranks, most=16)
    assert numbers == sorted(numbers)
    sizes = [numbers.count(group) for group in range(min(num_ranks, 16))]
    assert sum(sizes) == num_ranks
    assert max(sizes) - min(sizes) <= 1 <= min(sizes)
