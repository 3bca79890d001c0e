import math
import re
from pathlib import Path

import pytest

from flwr_asyncdrop.exceptions import ConfigError, DataError
from flwr_asyncdrop.fleet.availability import Availability
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.traces import _COLUMNS, read_trace, trace_fleet

EXAMPLE = Path(__file__).parents[2] / "examples" / "traces" / "phones.csv"


@pytest.fixture
def trace(tmp_path):
    def write(text, local_steps=1):
        path = tmp_path / "trace.csv"
        path.write_text(text, encoding="utf-8")
        return read_trace(path, local_steps)

    return write


def test_a_trace_by_hand(trace):
    devices = trace(
        "# two devices\n"
        "\n"
        "seconds_per_step, down_mbps,up_mbps,latency,jitter,dropout,period,available\n"
        "2,8,4,0.5,0.1,0.2,24,0-6 22-24\n"
        "# the other one\n"
        "0.5,,,,,,,\n",
        local_steps=10,
    )
    assert devices == [
        DeviceProfile(
            20.0,
            bytes_per_second_down=1e6,
            bytes_per_second_up=5e5,
            latency=0.5,
            jitter=0.1,
            dropout=0.2,
            availability=Availability(24.0, ((0.0, 6.0), (22.0, 24.0))),
        ),
        DeviceProfile(5.0),
    ]


def test_columns_come_in_any_order_and_may_be_left_out(trace):
    (device,) = trace("up_mbps,seconds_per_step\n2,3\n")
    assert device == DeviceProfile(3.0, bytes_per_second_up=250_000.0)
    assert device.bytes_per_second_down == math.inf


def test_columns_of_energy(trace):
    devices = trace("seconds_per_step,watts,joules_per_megabyte\n3,2.5,4\n5,0,0\n")
    assert devices == [
        DeviceProfile(3.0, watts=2.5, joules_per_byte=4e-6),
        DeviceProfile(5.0),
    ]


def test_the_example_of_energy():
    devices = read_trace(EXAMPLE.with_name("energy.csv"), local_steps=50)
    assert [device.watts for device in devices] == [90.0, 12.0, 4.0, 3.0]
    assert devices[2].joules_per_byte == pytest.approx(1.2e-6)


def test_a_spreadsheets_byte_order_mark_is_no_part_of_the_first_column(trace):
    assert trace("\ufeffseconds_per_step\n3\n") == [DeviceProfile(3.0)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("speed\n1\n", "line 1 of the trace"),
        ("speed\n1\n", "no column 'speed': there are seconds_per_step, down_mbps"),
        ("down_mbps\n1\n", "a column 'seconds_per_step' is needed"),
        ("seconds_per_step,jitter,jitter\n1,0,0\n", "'jitter' is there twice"),
        ("# x\nseconds_per_step\n1\nfast\n", "line 4 of the trace"),
        ("seconds_per_step\nfast\n", "seconds_per_step: 'fast' is not a number"),
        ("seconds_per_step\n1,2\n", "2 cells under 1 columns"),
        ('seconds_per_step\n"1\n', "line 2 of the trace"),
        ("seconds_per_step\n1\f2\n", "line 2 of the trace"),
        ("seconds_per_step\n1\u20282\n", "line 2 of the trace"),
        ("seconds_per_step\n1_5\n", "'1_5' is not a number"),
        ("seconds_per_step,jitter\n,1\n", "seconds_per_step is empty"),
        ("seconds_per_step\n-1\n", "seconds_per_step=-1.0 must be in"),
        ("seconds_per_step\nnan\n", "seconds_per_step=nan must be in"),
        ("seconds_per_step,up_mbps\n1,0\n", "up_mbps=0.0 must be in"),
        ("seconds_per_step,dropout\n1,1\n", "dropout=1.0 must be in [0, 1)"),
        ("seconds_per_step,period\n1,9\n", "period and available go together"),
        ("seconds_per_step,available\n1,0-9\n", "period and available go together"),
        ("seconds_per_step,period,available\n1,9,3\n", "available: '3' is no int"),
        ("seconds_per_step,period,available\n1,9,0 - 3\n", "'0' is no interval: wr"),
        ("seconds_per_step,period,available\n1,9,3-\n", "available: '' is not a"),
        ("seconds_per_step,period,available\n1,9,3-x\n", "'x' is not a number"),
        ("seconds_per_step,period,available\n1,9,5-3\n", "must ascend"),
        ("seconds_per_step,period,available\n1,9,5-30\n", "within [0, 9.0]"),
        ("seconds_per_step,period,available\n1,1e-99,0-1e-99\n", "period=1e-99 must"),
        ("seconds_per_step,watts\n1,2\n1,\n", "watts is empty: write 0"),
        ("seconds_per_step,watts\n1,-2\n", "watts=-2.0 must be in [0, 1e+09]"),
        ("seconds_per_step,watts\n1,inf\n", "watts=inf must be in [0, 1e+09]"),
        ("seconds_per_step,joules_per_megabyte\n1,x\n", "megabyte: 'x' is not a"),
        ("# nothing\nseconds_per_step\n", "has no devices"),
        ("", "has no devices"),
    ],
)
def test_a_wrong_line_is_refused_by_its_number(trace, text, says):
    with pytest.raises(DataError) as caught:
        trace(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_device_may_be_very_fast_but_no_faster_than_numbers_can_say(trace):
    (device,) = trace("seconds_per_step\n1e-9\n")
    assert device.seconds_per_task == 1e-9
    with pytest.raises(DataError, match="must be in"):
        trace("seconds_per_step\n0.9e-9\n")


def test_a_file_that_is_missing_or_no_text(tmp_path):
    with pytest.raises(DataError, match=r"cannot read the trace .*No such file"):
        read_trace(tmp_path / "none.csv", 1)
    path = tmp_path / "picture.csv"
    path.write_bytes(b"\x89PNG\xff")
    with pytest.raises(DataError, match="not a text file"):
        read_trace(path, 1)


def test_the_example_says_that_it_is_made_up_and_has_every_column():
    text = EXAMPLE.read_text()
    assert "made-up" in text.splitlines()[0]
    devices = read_trace(EXAMPLE, local_steps=50)
    assert len(devices) == 12
    assert devices[0].seconds_per_task == 20.0
    assert devices[0].bytes_per_second_down == 125e6
    assert [device.availability is None for device in devices] == [True] * 4 + [
        False
    ] * 8
    night = devices[4].availability
    assert (night.earliest(3600.0), night.earliest(30_000.0)) == (3600.0, 79_200.0)


A, B, C = (DeviceProfile(seconds) for seconds in (3.0, 1.0, 2.0))


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1, [A]),
        (2, [B, A]),
        (3, [B, C, A]),
        (4, [B, C, A, A]),
        (7, [B, B, C, C, A, A, A]),
    ],
)
def test_a_trace_is_repeated_from_its_beginning_and_sorted_by_speed(count, expected):
    assert trace_fleet([A, B, C], count) == expected


def test_a_fleet_of_no_devices_and_tasks_of_no_steps_are_refused():
    with pytest.raises(ConfigError, match="is no fleet"):
        trace_fleet([], 3)
    for wrong in (0, -1, math.nan, 1.5, "10"):
        with pytest.raises(ConfigError, match=r"local_steps=.* must be at least 1"):
            read_trace(EXAMPLE, wrong)


def test_the_documentation_names_every_column():
    text = (EXAMPLE.parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    section = text.partition("\n## A fleet of your own\n")[2].partition("\n## ")[0]
    firsts = re.findall(r"^\| (`.*?) \|", section, flags=re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(firsts)) == list(_COLUMNS)
