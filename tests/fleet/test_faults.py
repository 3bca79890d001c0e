import math

import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.faults import FaultPolicy


@pytest.mark.parametrize(
    ("deadline", "expected", "longest", "waits"),
    [
        (3.0, 4.0, math.inf, (12.0, 24.0)),
        (3.0, 4.0, 20.0, (12.0, 20.0)),
        (3.0, 4.0, 5.0, (5.0, 5.0)),  # never late: given up at once
        (3.0, None, 60.0, (60.0, 60.0)),  # nothing is known of the device
        (0.0, 4.0, 60.0, (60.0, 60.0)),
        (0.0, 4.0, math.inf, (math.inf, math.inf)),
    ],
)
def test_a_task_is_overdue_and_given_up_after(deadline, expected, longest, waits):
    assert FaultPolicy(deadline).waits(expected, longest) == waits


def test_quarantine_doubles_with_every_further_failure_up_to_64_times():
    faults = FaultPolicy(quarantine_after=3)
    seconds = [faults.quarantine(failures, 10.0) for failures in range(1, 13)]
    assert seconds == [0, 0, 10, 20, 40, 80, 160, 320, 640, 640, 640, 640]


def test_without_quarantine_a_device_may_fail_for_ever():
    assert FaultPolicy(quarantine_after=0).quarantine(99, 10.0) == 0


def test_what_a_late_update_counts():
    weights = [
        FaultPolicy(late=late).late_weight for late in ("merge", "discount", "drop")
    ]
    assert weights == [1.0, 0.5, 0.0]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"deadline": 0.5}, r"deadline=0\.5 must be at least 1 .*or 0 for none"),
        ({"deadline": math.nan}, "deadline=nan must be at least 1"),
        ({"deadline": 1e308}, r"deadline=1e\+308 must be .* at most 1000000000"),
        ({"late": "forget"}, "late='forget' must be one of merge, discount, drop"),
        ({"deadline": "3"}, "deadline='3' must be at least 1"),
        ({"late": ["merge"]}, r"late=\['merge'\] must be one of"),
        ({"quarantine_after": -1}, "quarantine_after=-1 must be at least 0"),
        ({"quarantine_after": 2.5}, r"quarantine_after=2\.5 must be .*whole number"),
    ],
)
def test_a_value_out_of_range_is_named(values, message):
    with pytest.raises(ConfigError, match=message):
        FaultPolicy(**values)
