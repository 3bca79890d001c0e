import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.config import RunConfig
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.simulation.fleets import build_fleet, fastest_share
from flwr_asyncdrop.simulation.profiles import DeviceProfile, TaskCost, speed_levels

COMPUTE = TaskCost(1.0, 0, 0)


def test_the_run_config_says_what_the_levels_are_like():
    config = RunConfig(
        levels=2,
        speed_ratio=4.0,
        step_seconds=0.5,
        local_steps=10,
        bandwidth_mbps=8.0,
        jitter=0.25,
        dropout=0.125,
    )
    assert build_fleet(config)(2) == [
        DeviceProfile(5.0, 1e6, 1e6, jitter=0.25, dropout=0.125),
        DeviceProfile(20.0, 2.5e5, 2.5e5, jitter=0.25, dropout=0.125),
    ]


def test_no_bandwidth_is_an_infinite_one():
    (device,) = build_fleet(RunConfig())(1)
    assert device == DeviceProfile(50.0, math.inf, math.inf)


def test_the_phases_of_absence_follow_the_seed_of_the_run():
    def patterns(seed):
        fleet = build_fleet(RunConfig(availability=0.5, seed=seed))(4)
        return [device.availability for device in fleet]

    assert patterns(0) == patterns(0)
    assert patterns(0) != patterns(1)


def test_a_trace_is_read_when_the_fleet_is_asked_for(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("seconds_per_step\n3\n1\n")
    build = build_fleet(RunConfig(trace=str(path), local_steps=2))
    assert [device.seconds_per_task for device in build(2)] == [2.0, 6.0]
    with pytest.raises(DataError, match="cannot read the trace"):
        build_fleet(RunConfig(trace=str(tmp_path / "none.csv")))


def share(seconds, num_ranks, **kwargs):
    profiles = [DeviceProfile(float(s)) for s in seconds]
    return fastest_share(profiles, num_ranks, COMPUTE, **kwargs)


def test_with_one_of_each_rank_the_share_is_that_of_the_speed():
    # 1 s and 4 s: of five updates in 4 s the fastest does four.
    assert share([1, 4], 2) == pytest.approx(4 / 5)
    # Ranks of two: 1.5 s and 6 s on average.
    assert share([1, 2, 4, 8], 2) == pytest.approx((1 / 1.5) / (1 / 1.5 + 1 / 6))


def test_if_any_device_may_be_next_each_does_equally_many():
    assert share([1, 2, 4, 8], 2, uniform=True) == 0.5
    assert share([1, 2, 4, 8, 9], 2, uniform=True) == pytest.approx(3 / 5)


def test_who_waits_for_the_others_does_as_many_as_they():
    assert share([1, 4], 2, waits_for=2) == 0.5
    assert share([1, 2, 3, 4, 5], 5, waits_for=5) == pytest.approx(0.2)
    # One of two before anybody goes on: the speed says 12/25.
    assert share([1, 2, 3, 4], 4, waits_for=2) == pytest.approx(12 / 25)
    assert share([1, 20, 30, 40], 4, waits_for=2) == 0.5


def test_transfers_and_jitter_take_their_time_and_lost_tasks_are_no_updates():
    fast, slow = DeviceProfile(1.0, bytes_per_second_down=10.0), DeviceProfile(4.0)
    assert fastest_share([fast, slow], 2, TaskCost(1.0, 30, 30)) == pytest.approx(0.5)
    shaky = DeviceProfile(1.0, jitter=math.sqrt(2 * math.log(4)))  # 4 s on average
    assert fastest_share([shaky, slow], 2, COMPUTE) == pytest.approx(0.5)
    lossy = DeviceProfile(1.0, dropout=0.75)
    assert fastest_share([lossy, slow], 2, COMPUTE) == pytest.approx(0.5)
    assert fastest_share([lossy, slow], 2, COMPUTE, uniform=True) == pytest.approx(0.2)


@given(st.integers(1, 40), st.integers(1, 12), st.booleans(), st.floats(1, 50))
def test_a_share_is_a_share_and_no_less_than_that_of_equals(
    size, ranks, uniform, ratio
):
    fleet = speed_levels(size, num_levels=ranks, slowest_over_fastest=ratio)
    found = fastest_share(fleet, ranks, COMPUTE, uniform=uniform)
    least = 1 / size if uniform else 1 / min(size, ranks)
    assert least - 1e-12 <= found <= 1
