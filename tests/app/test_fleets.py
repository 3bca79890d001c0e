import math

import pytest

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.fleets import build_fleet
from flwr_asyncdrop.exceptions import DataError
from flwr_asyncdrop.fleet.profiles import DeviceProfile


def test_the_run_config_says_what_the_levels_are_like():
    config = RunConfig(
        levels=2,
        speed_ratio=4.0,
        step_seconds=0.5,
        local_steps=10,
        bandwidth_mbps=8.0,
        jitter=0.25,
        dropout=0.125,
        watts=3.0,
        joules_per_megabyte=2.0,
    )
    each = {"jitter": 0.25, "dropout": 0.125, "watts": 3.0, "joules_per_byte": 2e-6}
    assert build_fleet(config)(2) == [
        DeviceProfile(5.0, 1e6, 1e6, **each),
        DeviceProfile(20.0, 2.5e5, 2.5e5, **each),
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
