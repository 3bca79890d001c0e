import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.app.data import by_speed_level, dirichlet, iid
from flwr_asyncdrop.app.data.partitions import level_pools, speed_level
from flwr_asyncdrop.exceptions import DataError

counts = st.integers(1, 20)
seeds = st.integers(0, 2**32 - 1)


def labels_for(num_shares: int) -> st.SearchStrategy[list[int]]:
    """Draw at least as many labels as there are shares to make of them."""
    sizes = {"min_size": num_shares, "max_size": num_shares + 60}
    return st.lists(st.integers(0, 9), **sizes)


def seeded(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


class TestSpeedLevel:
    def test_thirteen_devices_a_level_in_the_papers_fleet(self):
        levels = [speed_level(device, 104, 8) for device in range(104)]
        assert levels == [device // 13 for device in range(104)]

    def test_uneven_fleet(self):
        assert [speed_level(device, 5, 2) for device in range(5)] == [0, 0, 0, 1, 1]

    def test_fewer_devices_than_levels_have_one_each(self):
        assert [speed_level(device, 3, 8) for device in range(3)] == [0, 1, 2]

    @given(num_devices=counts, num_levels=counts)
    def test_levels_ascend_without_a_gap(self, num_devices, num_levels):
        levels = [speed_level(d, num_devices, num_levels) for d in range(num_devices)]
        assert levels == sorted(levels)
        assert set(levels) == set(range(min(num_devices, num_levels)))


class TestLevelPools:
    def test_by_hand(self):
        # Sorted by label: samples 3 5 | 1 4 | 0 7 | 2 6, and the shards are dealt
        # in the order that the generator gives.
        labels = [2, 1, 3, 0, 1, 0, 3, 2]
        shards = [[3, 5], [1, 4], [0, 7], [2, 6]]
        a, b, c, d = seeded(3).permutation(4)
        pools = level_pools(labels, 2, generator=seeded(3))
        assert pools[0].tolist() == shards[a] + shards[b]
        assert pools[1].tolist() == shards[c] + shards[d]

    def test_equal_labels_keep_their_order(self):
        (pool,) = level_pools([7] * 40, 1, generator=seeded(0), shards_per_level=1)
        assert pool.tolist() == list(range(40))

    @given(st.data(), counts, st.integers(1, 4), seeds)
    def test_every_level_gets_its_number_of_shards(self, data, levels, per_level, seed):
        num_shards = levels * per_level
        labels = data.draw(labels_for(num_shards))
        order = np.argsort(labels, kind="stable")
        shards = [set(shard) for shard in np.array_split(order, num_shards)]
        pools = level_pools(
            labels, levels, generator=seeded(seed), shards_per_level=per_level
        )
        assert len(pools) == levels
        for pool in pools:
            hand = [shard for shard in shards if shard <= set(pool)]
            assert len(hand) == per_level
            assert sum(map(len, hand)) == len(pool)

    @given(st.data(), counts, seeds)
    def test_pools_are_disjoint_and_hold_every_sample(self, data, levels, seed):
        labels = data.draw(labels_for(levels))
        pools = level_pools(labels, levels, generator=seeded(seed))
        assert min(map(len, pools)) >= 1
        assert sorted(np.concatenate(pools)) == list(range(len(labels)))

    def test_fewer_samples_than_shards(self):
        pools = level_pools([2, 1, 0], 3, generator=seeded(0), shards_per_level=2)
        assert sorted(pool.tolist() for pool in pools) == [[0], [1], [2]]


class TestBySpeedLevel:
    @given(st.data(), counts, counts, seeds)
    def test_devices_hold_half_of_their_levels_pool(
        self, data, num_devices, num_levels, seed
    ):
        levels = min(num_levels, num_devices)
        labels = data.draw(labels_for(levels))
        # The pools are the generator's first draw.
        pools = level_pools(labels, levels, generator=seeded(seed))
        parts = by_speed_level(labels, num_devices, num_levels, generator=seeded(seed))
        assert len(parts) == num_devices
        for device, part in enumerate(parts):
            pool = pools[speed_level(device, num_devices, num_levels)]
            assert len(part) == -(-len(pool) // 2)
            assert set(part) <= set(pool)
            assert part.tolist() == sorted(set(part))

    @given(st.integers(1, 60), counts, seeds)
    def test_no_device_is_empty(self, num_devices, num_levels, seed):
        labels = [sample % 3 for sample in range(num_devices)]
        parts = by_speed_level(labels, num_devices, num_levels, generator=seeded(seed))
        assert min(map(len, parts)) >= 1

    def test_a_level_knows_few_labels(self):
        labels = np.repeat(np.arange(10), 80)  # 16 shards of 50: at most 2 labels each
        parts = list(by_speed_level(labels, 104, 8, generator=seeded(0)))
        for level in range(8):
            devices = parts[13 * level : 13 * level + 13]
            assert len(np.unique(labels[np.concatenate(devices)])) <= 4

    def test_a_device_takes_a_bit_for_each_sample_of_its_pool(self):
        # As indices, 100,000 devices of Fashion-MNIST would take 3 GB a process.
        parts = by_speed_level(np.zeros(8000), 50, 1, generator=seeded(0))
        assert sum(bits.nbytes for bits in parts.bits) == 50 * 8000 // 8

    def test_the_halves_of_samples_that_are_some_of_all(self):
        labels, samples = [0, 1] * 50, np.arange(100) * 7 + 3
        parts = by_speed_level(labels, 6, 2, generator=seeded(0))
        found = parts.among(samples)
        assert [part.tolist() for part in found] == [
            samples[part].tolist() for part in parts
        ]

    def test_devices_of_a_level_draw_on_their_own(self):
        first, second = by_speed_level([0] * 100, 2, 1, generator=seeded(0))
        assert first.tolist() != second.tolist()

    def test_seed_decides(self):
        labels = np.arange(400) % 10

        def parts(seed: int) -> list[list[int]]:
            dealt = by_speed_level(labels, 20, 4, generator=seeded(seed))
            return [part.tolist() for part in dealt]

        assert parts(1) == parts(1)
        assert parts(1) != parts(2)

    def test_too_few_samples(self):
        with pytest.raises(DataError, match=r"3 training samples .* 4 speed levels"):
            by_speed_level([0, 1, 2], 9, 4, generator=seeded(0))


class TestDirichlet:
    @given(st.data(), counts, st.floats(1e-4, 1e4), seeds)
    def test_even_disjoint_and_complete(self, data, num_devices, alpha, seed):
        labels = data.draw(labels_for(num_devices))
        parts = dirichlet(labels, num_devices, alpha, generator=seeded(seed))
        sizes = [len(part) for part in parts]
        assert len(parts) == num_devices
        assert max(sizes) - min(sizes) <= 1
        assert sorted(np.concatenate(parts)) == list(range(len(labels)))
        assert all(np.all(np.diff(part) > 0) for part in parts)

    def test_the_first_device_follows_its_mix(self):
        # The generator's draws: a shuffle of each label's samples, then the mix.
        labels = np.repeat([3, 7], [6000, 2000])
        generator = seeded(5)
        for samples in (np.arange(6000), np.arange(6000, 8000)):
            generator.permutation(samples)
        mix = generator.dirichlet([2.0 * 0.75, 2.0 * 0.25])
        first = dirichlet(labels, 20, 2.0, generator=seeded(5))[0]
        shares = np.bincount(labels[first], minlength=8)[[3, 7]] / 400
        assert shares == pytest.approx(mix, abs=0.08)  # over three deviations

    def test_alpha_decides_how_alike_devices_are(self):
        labels = np.arange(5000) % 10

        def largest_shares(alpha: float) -> np.ndarray:
            parts = dirichlet(labels, 20, alpha, generator=seeded(0))
            counts = [np.bincount(labels[part], minlength=10) for part in parts]
            return np.max(counts, axis=1) / 250

        assert np.median(largest_shares(0.01)) > 0.9
        assert np.median(largest_shares(1.0)) < 0.7
        # Not the last device's, which takes what is left.
        assert np.max(largest_shares(1000.0)[:-1]) < 0.2

    def test_labels_that_are_used_up_leave_the_mix(self):
        # Each of the four devices wants nearly one label alone, and there are two.
        labels = [0] * 3 + [1] * 9
        parts = dirichlet(labels, 4, 1e-6, generator=seeded(1))
        assert [len(part) for part in parts] == [3, 3, 3, 3]
        assert sorted(np.concatenate(parts)) == list(range(12))

    def test_seed_decides(self):
        labels = np.arange(400) % 10

        def parts(seed: int) -> list[list[int]]:
            dealt = dirichlet(labels, 20, 0.5, generator=seeded(seed))
            return [part.tolist() for part in dealt]

        assert parts(1) == parts(1)
        assert parts(1) != parts(2)

    def test_too_few_samples(self):
        with pytest.raises(DataError, match=r"3 training samples .* 4 devices"):
            dirichlet([0, 1, 2], 4, 0.5, generator=seeded(0))


class TestIid:
    @given(counts, st.integers(0, 100), seeds)
    def test_even_disjoint_and_complete(self, num_devices, extra, seed):
        num_samples = num_devices + extra
        parts = iid(num_samples, num_devices, generator=seeded(seed))
        sizes = [len(part) for part in parts]
        assert len(parts) == num_devices
        assert max(sizes) - min(sizes) <= 1
        assert sorted(np.concatenate(parts)) == list(range(num_samples))
        assert all(np.all(np.diff(part) > 0) for part in parts)

    def test_seed_decides(self):
        first, again, other = (iid(50, 1, generator=seeded(0)) for _ in range(3))
        assert first[0].tolist() == again[0].tolist() == other[0].tolist()
        halves = [iid(50, 2, generator=seeded(seed))[0].tolist() for seed in (1, 1, 2)]
        assert halves[0] == halves[1]
        assert halves[0] != halves[2]

    def test_too_few_samples(self):
        with pytest.raises(DataError, match=r"3 training samples .* 4 devices"):
            iid(3, 4, generator=seeded(0))
