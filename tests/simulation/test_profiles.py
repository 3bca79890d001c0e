import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.simulation.profiles import DeviceProfile, TaskCost, speed_levels


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
    assert [profile.bytes_per_second for profile in fleet] == [1000.0, 200.0]


def test_a_duration_is_compute_plus_both_transfers():
    profile = DeviceProfile(seconds_per_task=8.0, bytes_per_second=100.0)
    cost = TaskCost(compute=0.5, bytes_down=200, bytes_up=300)
    assert profile.duration(cost) == 8 * 0.5 + 500 / 100
    assert DeviceProfile(8.0).duration(cost) == 4.0


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
    "build",
    [
        lambda: speed_levels(0),
        lambda: speed_levels(8, num_levels=0),
        lambda: speed_levels(8, slowest_over_fastest=0.9),
        lambda: DeviceProfile(0.0),
        lambda: DeviceProfile(float("inf")),
        lambda: DeviceProfile(1.0, bytes_per_second=0.0),
    ],
)
def test_impossible_devices_are_refused(build):
    with pytest.raises(ConfigError):
        build()
