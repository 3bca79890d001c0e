import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost


def test_the_papers_fleet_by_hand():
    fleet = speed_levels(104, seconds_per_task=50.0)
    delays = [profile.seconds_per_task for profile in fleet]
    # 8 levels of 13; delays 1, 1 + 4/7, 1 + 8/7, ..., 5 times 50 s.
    assert delays[:13] == [50.0] * 13
    assert delays[13] == pytest.approx(50 * (1 + 4 / 7))
    assert delays[91:] == pytest.approx([250.0] * 13)
    assert sorted(delays) == delays


def test_slower_levels_have_less_bandwidth():
    fleet = speed_levels(2, num_levels=2, bytes_per_second=1000.0)
    assert [profile.bytes_per_second_down for profile in fleet] == [1000.0, 200.0]
    assert [profile.bytes_per_second_up for profile in fleet] == [1000.0, 200.0]


def test_a_duration_is_compute_and_both_transfers_and_two_latencies():
    profile = DeviceProfile(
        8.0, bytes_per_second_down=100.0, bytes_per_second_up=50.0, latency=0.25
    )
    cost = TaskCost(compute=0.5, bytes_down=200, bytes_up=300)
    assert profile.duration(cost) == 8 * 0.5 + 200 / 100 + 300 / 50 + 2 * 0.25
    assert DeviceProfile(8.0).duration(cost) == 4.0


def test_jitter_is_a_log_normal_factor_on_the_whole_duration():
    profile = DeviceProfile(2.0, latency=1.0, jitter=0.5)
    cost = TaskCost(compute=0.5, bytes_down=0, bytes_up=0)
    assert profile.duration(cost) == 3.0
    assert profile.duration(cost, noise=2.0) == pytest.approx(3 * math.e)
    assert profile.duration(cost, noise=-1.0) == pytest.approx(3 / math.sqrt(math.e))
    # Of 0.5 x 1 s with sigma = 2 the mean is 0.5 exp(2).
    wild = DeviceProfile(1.0, jitter=2.0)
    assert wild.mean_duration(cost) == pytest.approx(0.5 * math.exp(2))


def test_the_mean_duration_is_that_of_many_tasks():
    profile = DeviceProfile(3.0, jitter=0.5)
    cost = TaskCost(1.0, 0, 0)
    draws = np.random.default_rng(0).standard_normal(20_000)
    durations = [profile.duration(cost, noise) for noise in draws.tolist()]
    # The standard error is 3 * 0.6 / sqrt(20000) = 0.013 s.
    assert statistics.mean(durations) == pytest.approx(
        profile.mean_duration(cost), abs=0.05
    )
    assert statistics.median(durations) == pytest.approx(3.0, abs=0.05)


def test_numbers_of_numpy_are_pythons_own():
    """A history is JSON, which has none of NumPy's."""
    profile = DeviceProfile(np.float32(2.0), latency=np.int64(1), watts=np.float64(3.0))
    numbers = profile.seconds_per_task, profile.latency, profile.watts
    assert [type(number) for number in numbers] == [float, int, float]
    assert numbers == (2.0, 1, 3.0)


def test_energy_is_of_computing_and_of_bytes_both_ways():
    profile = DeviceProfile(8.0, watts=3.0, joules_per_byte=0.5, jitter=2.0, latency=9)
    cost = TaskCost(compute=0.25, bytes_down=200, bytes_up=300)
    assert profile.energy(cost) == 3 * 8 * 0.25 + 0.5 * (200 + 300)
    assert DeviceProfile(8.0, watts=3.0).energy(cost) == 6.0
    assert DeviceProfile(8.0, joules_per_byte=0.5).energy(cost) == 250.0
    assert DeviceProfile(8.0).energy(cost) == 0.0


def test_every_level_has_the_power_and_a_slow_one_takes_more_energy():
    fleet = speed_levels(2, num_levels=2, watts=3.0, joules_per_byte=0.5)
    cost = TaskCost(1.0, 10, 10)
    assert [profile.energy(cost) for profile in fleet] == [13.0, 25.0]


def test_every_level_has_the_jitter_and_the_dropout():
    fleet = speed_levels(16, jitter=0.3, dropout=0.1)
    assert {(profile.jitter, profile.dropout) for profile in fleet} == {(0.3, 0.1)}
    assert {profile.availability for profile in fleet} == {None}


def test_devices_come_and_go_each_at_its_own_time():
    fleet = speed_levels(50, seconds_per_task=10.0, availability=0.25, seed=1)
    patterns = [profile.availability for profile in fleet]
    assert {pattern.period for pattern in patterns} == {200.0}
    assert len({pattern.intervals for pattern in patterns}) == 50
    there = sum(pattern.earliest(70.0) == 70.0 for pattern in patterns)
    assert 3 <= there <= 25  # 12.5 are expected, with a deviation of 3


def test_the_phases_follow_the_seed_and_the_device_alone():
    def phases(count, seed):
        return [
            p.availability for p in speed_levels(count, availability=0.5, seed=seed)
        ]

    assert phases(8, seed=1) == phases(16, seed=1)[:8]
    assert phases(8, seed=1) != phases(8, seed=2)


@given(st.integers(1, 300), st.integers(1, 20), st.floats(1, 100))
def test_any_fleet_spans_the_ratio_fastest_first(devices, levels, ratio):
    fleet = speed_levels(devices, num_levels=levels, slowest_over_fastest=ratio)
    delays = [profile.seconds_per_task for profile in fleet]
    assert len(delays) == devices
    assert delays[0] == 1.0
    assert delays == sorted(delays)
    if min(levels, devices) > 1:
        assert delays[-1] == pytest.approx(ratio)
        assert len(set(delays)) == (
            min(levels, devices) if ratio > 1.001 else len(set(delays))
        )


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: speed_levels(0), "num_devices=0"),
        (lambda: speed_levels(8, num_levels=0), "num_levels=0"),
        (lambda: speed_levels(8, slowest_over_fastest=0.9), "fastest=0.9"),
        (lambda: speed_levels(8, availability=0.0), "availability=0.0"),
        (lambda: speed_levels(8, availability=1.1), "availability=1.1"),
        (lambda: DeviceProfile(0.0), "seconds_per_task=0.0"),
        (lambda: DeviceProfile(math.inf), "seconds_per_task=inf"),
        (lambda: DeviceProfile(1.0, bytes_per_second_down=0.0), "second_down=0.0"),
        (lambda: DeviceProfile(1.0, bytes_per_second_up=math.nan), "second_up=nan"),
        (lambda: DeviceProfile(1.0, latency=-1.0), "latency=-1.0"),
        (lambda: DeviceProfile(1.0, jitter=11.0), "jitter=11.0 must be in [0, 10]"),
        (lambda: DeviceProfile(1.0, watts=-1.0), "watts=-1.0 must be at least 0"),
        (lambda: DeviceProfile(1.0, watts=math.inf), "watts=inf must be"),
        (lambda: DeviceProfile(1.0, joules_per_byte=math.nan), "per_byte=nan must be"),
        (lambda: DeviceProfile(1.0, dropout=1.0), "dropout=1.0 must be in [0, 1)"),
        (lambda: DeviceProfile("fast"), "seconds_per_task='fast' must be"),
        (lambda: DeviceProfile(1.0, jitter=None), "jitter=None must be"),
        (lambda: DeviceProfile(1.0, availability=0.5), "availability=0.5 must be an"),
        (lambda: speed_levels("4"), "num_devices='4'"),
        (lambda: speed_levels(4.5), "num_devices=4.5"),
        (lambda: speed_levels(4, slowest_over_fastest="5"), "fastest='5'"),
        (lambda: speed_levels(4, seconds_per_task="1"), "seconds_per_task='1'"),
        (lambda: speed_levels(4, bytes_per_second=None), "bytes_per_second=None"),
    ],
)
def test_impossible_devices_are_refused(build, says):
    with pytest.raises(ConfigError) as caught:
        build()
    assert says in str(caught.value)
