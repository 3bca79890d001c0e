"""The contract of every mask policy, and each policy's own rule."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import (
    DropRate,
    FullMask,
    OrderedMask,
    RandomMask,
    SmartPartition,
)
from flwr_asyncdrop.masks.smart import dropped_window
from flwr_asyncdrop.submodel import UnitGroup
from tests.masks.choosing import choose

RATES = st.floats(0.0, 0.99)
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=4)


def groups_of(*sizes):
    return [UnitGroup(f"layer{i}", size, "internal") for i, size in enumerate(sizes)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def random_scores(groups, seed=0):
    generator = seeded(seed)
    return [torch.rand(group.size, generator=generator) for group in groups]


def assign(policy, sizes, rank=0, num_ranks=1, seed=0):
    groups = groups_of(*sizes)
    scores = random_scores(groups)
    return choose(policy, groups, scores, rank, num_ranks, seeded(seed))


def dropped(policy, scores, rank, num_ranks):
    """Return which units of one group a device drops."""
    [kept] = choose(
        policy,
        groups_of(len(scores)),
        [torch.tensor(scores)],
        rank,
        num_ranks,
        seeded(),
    )
    return sorted(set(range(len(scores))) - set(kept.tolist()))


@pytest.mark.parametrize("policy", [OrderedMask, RandomMask, SmartPartition])
def test_what_drops_nothing_needs_no_units(policy):
    assert policy(0.0).is_full
    assert not policy(0.25).is_full


@pytest.mark.parametrize("policy", [RandomMask, SmartPartition])
class TestEveryDroppingPolicy:
    @given(sizes=SIZES, rate=RATES, ranks=st.integers(1, 50), data=st.data())
    @settings(deadline=None)
    def test_keeps_ascending_units_and_drops_its_rate(
        self, policy, sizes, rate, ranks, data
    ):
        rank = data.draw(st.integers(0, ranks - 1))
        keep = assign(policy(rate), sizes, rank, ranks)
        for size, units in zip(sizes, keep, strict=True):
            dropped = size - len(units)
            assert abs(dropped - min(size * rate, size - 1)) < 1
        for size, units in zip(sizes, keep, strict=True):
            assert units.dtype == torch.int64
            assert units.tolist() == sorted(set(units.tolist()) & set(range(size)))

    def test_rate_zero_keeps_everything(self, policy):
        for units in assign(policy(0.0), [1, 5], rank=1, num_ranks=3):
            assert units.tolist() == list(range(len(units)))

    def test_a_lone_unit_stays(self, policy):
        [units] = assign(policy(0.99), [1])
        assert units.tolist() == [0]

    def test_a_quarter_of_two_or_three_heads_over_tasks(self, policy):
        dropped = torch.zeros(2)
        for task in range(2000):
            keep = assign(policy(0.25), [2, 3], seed=task)
            dropped += torch.tensor([2, 3]) - torch.tensor([len(u) for u in keep])
        # Half a head and three quarters; five standard errors of 2000 draws are 0.056.
        assert dropped / 2000 == pytest.approx([0.5, 0.75], abs=0.056)

    def test_the_same_task_drops_the_same(self, policy):
        one, same = (assign(policy(0.3), [5, 2, 7], seed=4) for _ in range(2))
        assert [u.tolist() for u in one] == [u.tolist() for u in same]

    def test_global_generator_is_left_alone(self, policy):
        before = torch.get_rng_state()
        assign(policy(0.5), [20])
        assert torch.equal(torch.get_rng_state(), before)

    @pytest.mark.parametrize("rate", [1.0, 1.5, -0.1, float("nan")])
    def test_rate_outside_its_range(self, policy, rate):
        with pytest.raises(ConfigError, match=f"drop_rate={rate} must be in"):
            policy(rate)


class TestFullMask:
    def test_keeps_everything(self):
        keep = assign(FullMask(), [3, 1], rank=1, num_ranks=2)
        assert [units.tolist() for units in keep] == [[0, 1, 2], [0]]

    def test_wants_no_scores(self):
        keep = choose(FullMask(), groups_of(2), None)  # with scores it would raise
        assert len(keep) == 1


class TestRandomMask:
    def test_same_seed_same_mask(self):
        [one], [same] = (assign(RandomMask(0.5), [64], seed=3) for _ in range(2))
        assert torch.equal(one, same)

    def test_other_seed_other_mask(self):
        [one], [other] = (assign(RandomMask(0.5), [64], seed=s) for s in (3, 4))
        assert not torch.equal(one, other)

    def test_groups_of_one_size_differ(self):
        one, other = assign(RandomMask(0.5), [64, 64])
        assert not torch.equal(one, other)

    def test_every_unit_is_as_likely(self):
        generator = seeded()
        counts = torch.zeros(8)
        for _ in range(2000):
            [kept] = choose(RandomMask(0.25), groups_of(8), None, 0, 1, generator)
            counts[kept] += 1
        # 0.75 expected; five standard errors of a share of 2000 draws are 0.048.
        assert (counts / 2000 - 0.75).abs().max() < 0.05


class TestSmartPartition:
    # Descending, the units come as 4 (9.0), 1 (7.0), 6, 0, 7, 2, 5, 3 (0.0).
    SCORES = (4.0, 7.0, 2.0, 0.0, 9.0, 1.0, 5.0, 3.0)

    @pytest.mark.parametrize(
        ("rank", "units"), [(0, [1, 4]), (1, [0, 6]), (2, [2, 7]), (3, [3, 5])]
    )
    def test_four_ranks_drop_a_quarter_each(self, rank, units):
        # n = 8, q = 2, n // S = 2: windows at 0, 2, 4, 6.
        assert dropped(SmartPartition(0.25), self.SCORES, rank, 4) == units

    @pytest.mark.parametrize(
        ("rank", "units"), [(0, [0, 1, 4, 6]), (1, [0, 1, 6, 7]), (7, [2, 3, 5, 7])]
    )
    def test_windows_overlap_and_end_with_the_last(self, rank, units):
        # n = 8, q = 4, n // S = 1: windows at 0, 1, ..., but at most at 4.
        assert dropped(SmartPartition(0.5), self.SCORES, rank, 8) == units

    @pytest.mark.parametrize(
        ("rank", "units"), [(0, [9, 8]), (1, [8, 7]), (7, [2, 1]), (8, [1, 0])]
    )
    def test_ten_units(self, rank, units):
        # n = 10, q = 2, n // S = 1 for nine ranks; unit 9 has moved most.
        scores = [float(unit) for unit in range(10)]
        assert dropped(SmartPartition(0.25), scores, rank, 9) == sorted(units)

    def test_more_ranks_than_units(self):
        # n = 3, q = 1 for five ranks: windows at i * 2 // 4, from the largest on.
        units = [dropped(SmartPartition(0.5), [1.0, 2.0, 3.0], i, 5) for i in range(5)]
        assert units == [[2], [2], [1], [1], [0]]

    @given(st.data(), st.integers(1, 11))
    def test_the_first_window_has_the_largest_and_the_last_one_the_smallest(
        self, data, size
    ):
        ranks = data.draw(st.integers(size + 1, 12))
        drop = data.draw(st.integers(0, size - 1))
        starts = [dropped_window(size, drop, i, ranks).start for i in range(ranks)]
        assert (starts[0], starts[-1]) == (0, size - drop)
        assert all(0 <= b - a <= 1 for a, b in itertools.pairwise(starts))

    def test_one_rank_drops_the_largest(self):
        assert dropped(SmartPartition(0.25), self.SCORES, 0, 1) == [1, 4]

    def test_equal_scores_go_by_unit_number(self):
        # Descending: 1, 3 (both 2.0), 0, 2 (both 1.0).
        scores = [1.0, 2.0, 1.0, 2.0]
        windows = [dropped(SmartPartition(0.25), scores, i, 4) for i in range(4)]
        assert windows == [[1], [3], [0], [2]]

    def test_many_equal_scores_go_by_unit_number(self):
        scores = [0.0] * 5000
        assert dropped(SmartPartition(0.5), scores, 0, 2) == list(range(2500))

    @given(window=st.integers(1, 9), ranks=st.integers(2, 12), seed=st.integers(0, 99))
    @settings(deadline=None)
    def test_windows_of_all_ranks_partition_the_units(self, window, ranks, seed):
        size = window * ranks
        scores = torch.rand(size, generator=seeded(seed)).tolist()
        policy = SmartPartition(window / size)
        units = [dropped(policy, scores, rank, ranks) for rank in range(ranks)]
        assert sorted(itertools.chain(*units)) == list(range(size))

    def test_each_group_has_an_order_of_its_own(self):
        scores = [torch.tensor([1.0, 2.0]), torch.tensor([2.0, 1.0])]
        keep = choose(SmartPartition(0.5), groups_of(2, 2), scores, 0, 1, seeded())
        assert [units.tolist() for units in keep] == [[0], [1]]

    def test_leaves_nothing_to_chance(self):
        [one], [other] = (assign(SmartPartition(0.5), [64], seed=s) for s in (3, 4))
        assert torch.equal(one, other)

    def test_without_scores(self):
        with pytest.raises(ConfigError, match="compute_scores"):
            choose(SmartPartition(0.5), groups_of(4), None, 0, 1, seeded())


def test_whole_counts_draw_nothing():
    untouched, generator = seeded(), seeded()
    assert DropRate(0.25).draw(groups_of(8, 4), generator) == (2, 1)
    assert torch.equal(untouched.get_state(), generator.get_state())


@pytest.mark.parametrize(
    ("rate", "round_to", "size", "kept"),
    [
        (0.25, 1, 64, 48),
        (0.25, 16, 64, 48),
        (0.25, 16, 100, 80),  # 75 is nearer to 80 than to 64
        (0.5, 16, 128, 64),
        (0.3, 16, 40, 32),  # 28
        (0.9, 16, 64, 16),  # 7, but at least one multiple
        (0.25, 16, 12, 9),  # a group without a multiple is left alone
        (0.1, 16, 20, 16),  # 18
        (0.0, 16, 100, 100),  # nothing is dropped to round
    ],
)
def test_widths_are_rounded_to_the_hardware(rate, round_to, size, kept):
    """Where widths are fixed; `test_counts` has those that chance rounds."""
    assert size - DropRate(rate, round_to).dropped(size) == kept


@pytest.mark.parametrize("policy", [RandomMask, SmartPartition])
@pytest.mark.parametrize("size", [64, 100, 40, 12])
def test_policies_draw_widths_that_suit_the_hardware(policy, size):
    widths = {len(assign(policy(0.3, 16), [size], seed=s)[0]) for s in range(30)}
    assert all(width % 16 == 0 or width == size or size < 16 for width in widths)
    assert min(widths) < size


def test_fixed_widths_keep_the_least_number_of_units():
    assert DropRate(0.75).dropped(4, least=2) == 2
    assert DropRate(0.75, 2).dropped(8, least=3) == 4  # the next multiple of 2
    assert DropRate(0.75, 4).dropped(16, least=5) == 8  # of which 4 are too few
    assert DropRate(0.75, 8).dropped(4, least=2) == 2  # fewer than a multiple


@given(RATES, st.integers(1, 64), st.integers(1, 300))
def test_rounding_always_keeps_a_unit_and_never_more_than_there_are(rate, to, size):
    assert 0 <= DropRate(rate, to).dropped(size) < size


def test_rounding_to_nothing_is_refused():
    with pytest.raises(ConfigError, match="round_to=0 must be at least 1"):
        RandomMask(0.25, round_to=0)


@pytest.mark.parametrize("policy", [RandomMask, SmartPartition, OrderedMask])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("drop_rate", "0.25"),
        ("drop_rate", None),
        ("drop_rate", [0.25]),
        ("round_to", "16"),
        ("round_to", 2.5),
        ("round_to", float("nan")),
        ("round_to", float("inf")),
    ],
)
def test_what_is_no_rate_and_no_width_is_refused(policy, name, value):
    with pytest.raises(ConfigError, match=rf"^{name}=.* must be "):
        policy(**{"drop_rate": 0.25, name: value})


def test_numbers_of_numpy_are_rates_and_widths():
    rate = DropRate(np.float32(0.25), np.int64(16))
    assert (type(rate.rate), type(rate.round_to)) == (float, int)
