"""Which codec a device gets: by its bandwidth, or the same for all."""

import math

import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.capacity import Trip
from flwr_asyncdrop.fleet.codecs import AutoCodec, Link, OneCodec, codec_choice
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile, TaskCost
from flwr_asyncdrop.wire import DeviceReport
from flwr_asyncdrop.wire.codec import PRESETS, codec

BYTES = {"none": 800, "q8": 200, "q4": 100, "q2": 75}


def sizes(candidate):
    return (BYTES[candidate.name],) * 2


@pytest.mark.parametrize(
    ("rate", "name"),
    # 10 s of training leave 2.5 s for transfers, a fifth of the whole.
    [(math.inf, "none"), (640, "none"), (639, "q8"), (160, "q8"), (159, "q4"),
     (80, "q4"), (79, "q2"), (1, "q2")],
)  # fmt: skip
def test_the_most_bits_that_take_a_fifth_of_the_time(rate, name):
    assert AutoCodec().choose(Link(10.0, rate, rate), sizes) == codec(name)


def test_where_nothing_is_small_enough_it_is_the_smallest():
    """A ladder of one's own need not have it last: small tensors have scales, too."""
    ladder = tuple(map(codec, ("none", "q2", "q8")))
    assert AutoCodec(ladder=ladder).choose(Link(10.0, 1, 1), sizes) == codec("q2")
    same = AutoCodec().choose(Link(10.0, 1, 1), lambda candidate: (90, 90))
    assert same == codec("q2")


def test_an_unknown_device_gets_the_codec_for_those():
    assert AutoCodec().choose(Link(), sizes) == codec("q8")
    assert AutoCodec(unknown=codec("q4")).choose(Link(), sizes) == codec("q4")


def test_a_real_device_is_unknown_until_its_speed_and_its_bandwidth_are_known():
    fleet = Fleet(1)
    fleet.refresh([7])
    assert fleet.devices.link(0, 0.5) == Link()
    trip = Trip(0.0, 9.0, TaskCost(1.0, 100, 100))
    fleet.update_from_report(0, DeviceReport(train_seconds=4.0), trip)
    assert fleet.devices.link(0, 0.5) == Link()
    report = DeviceReport(train_seconds=4.0, bandwidth=1000.0)
    fleet.update_from_report(0, report, trip)
    assert fleet.devices.link(0, 0.5) == Link(2.0, 1000.0, 1000.0)


def test_a_simulated_device_is_known():
    fleet = Fleet(1, [DeviceProfile(4.0, 100.0, 50.0)])
    fleet.refresh([7])
    assert fleet.devices.link(0, 0.5) == Link(2.0, 100.0, 50.0)


def test_runs_tell_choices_apart():
    given = ["q8", "q4", "auto", AutoCodec(share=0.1)]
    assert len({codec_choice(each).label for each in given}) == len(given)
    assert codec_choice("q4") == OneCodec(codec("q4"))
    assert codec_choice("none") is None
    assert codec_choice(None) is None


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, math.nan, "0.1"])
def test_a_share_is_a_share(share):
    with pytest.raises(ConfigError, match="share="):
        AutoCodec(share=share)


def test_a_ladder_has_a_codec_and_feedback_is_known():
    with pytest.raises(ConfigError, match="ladder"):
        AutoCodec(ladder=())
    assert not AutoCodec().uses_feedback
    assert AutoCodec(ladder=(PRESETS["topk-q4"],)).uses_feedback


@pytest.mark.parametrize(
    "wrong",
    [{"ladder": ("q4",)}, {"ladder": "q4"}, {"unknown": "q4"}, {"typical": None}],
)
def test_a_name_is_no_codec(wrong):
    with pytest.raises(ConfigError, match=r"is no codec: pass one as codec\('q4'\)"):
        AutoCodec(**wrong)
