"""Schemes and codecs by name."""

import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.wire.codec import (
    PRESETS,
    Blocks,
    Codec,
    Rotated,
    TopK,
    codec,
    scheme,
)

NAMES = {
    "q8": Blocks(8),
    "q4": Blocks(4),
    "q4/128": Blocks(4, 128),
    "q2": Rotated(2),
    "q1": Rotated(1),
    "top10%+q4": TopK(0.1, Blocks(4)),
    "top0.5%+q8/32": TopK(0.005, Blocks(8, 32)),
    "top50%+q1": TopK(0.5, Rotated(1)),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_scheme_is_known_by_its_name(name):
    assert scheme(name) == NAMES[name]
    assert NAMES[name].name == name
    assert len({scheme(name), NAMES[name]}) == 1
    assert pickle.loads(pickle.dumps(NAMES[name])) == NAMES[name]  # noqa: S301  # own


def test_the_name_of_a_share_from_numpy():
    assert TopK(np.float64(0.1)).name == "top10%+q4"
    assert scheme(TopK(np.float32(0.1)).name) == TopK(np.float32(0.1))


@given(
    st.floats(1e-6, 1, exclude_max=True),
    st.sampled_from([Blocks(4), Blocks(8, 16), Rotated(1)]),
)
def test_every_share_comes_back_from_its_name(share, inner):
    made = TopK(share, inner)
    assert scheme(made.name) == made


@pytest.mark.parametrize(
    "name",
    [
        *("", "q3", "q16", "Q4", " q4", "q4 ", "q4\n", "q4/", "q4/x", "q4/-8", "q2/64"),
        *("top10%", "top%+q4", "top10+q4", "top10%+", "top-1%+q4", "topnan%+q4"),
        *("top10%+top10%+q4", "top10%+none", "none", "auto", "q٤", "top1٠%+q4"),
        *(4, None, ["q4"], Blocks(4), b"q4"),
    ],
)
def test_what_is_no_scheme_is_refused(name):
    with pytest.raises(ConfigError, match=re.escape(f"unknown scheme {name!r}: "[:60])):
        scheme(name)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("q4/48", "block=48"), ("q8/99999", "block="), ("top0%+q4", "share=0.0")],
)
def test_numbers_out_of_range_are_refused_as_such(name, wrong):
    with pytest.raises(ConfigError, match=wrong):
        scheme(name)


def test_a_long_name_is_shown_in_part():
    with pytest.raises(ConfigError) as caught:
        scheme("q" * 10**6)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("name", ["none", "q8", "q4", "q2", "topk-q4"])
def test_a_codec_is_known_by_its_name(name):
    assert codec(name).name == name
    assert codec(name) == PRESETS[name]


def test_what_each_direction_is():
    assert codec("none") == Codec(None, None)
    assert codec("q8") == Codec(Blocks(8), Blocks(8))
    assert codec("q4") == Codec(Blocks(4), Blocks(4))
    assert codec("q2") == Codec(Blocks(4), Rotated(2))
    top = TopK(0.1, Blocks(4))
    assert codec("topk-q4") == Codec(Blocks(4), top, feedback=True)


def test_a_codec_of_ones_own_is_named_by_its_schemes():
    assert Codec(Blocks(8), Rotated(1)).name == "down=q8,up=q1"
    assert Codec(None, Blocks(4)).name == "down=none,up=q4"
    fed_back = Codec(Blocks(8), TopK(0.05, Blocks(8)), feedback=True)
    assert fed_back.name == "down=q8,up=top5%+q8,feedback"


@pytest.mark.parametrize("down", [None, *NAMES.values()])
@pytest.mark.parametrize("up", [None, Blocks(4), Blocks(8, 32), TopK(0.07, Rotated(1))])
@pytest.mark.parametrize("feedback", [False, True])
def test_every_codec_comes_back_from_its_name(down, up, feedback):
    made = Codec(down, up, feedback and up is not None)
    assert codec(made.name) == made


@pytest.mark.parametrize(
    ("name", "keeps"),
    [
        *(("none", True), ("q4", True), ("q2", True), ("down=none,up=q1", True)),
        *(("down=q2,up=none", False), ("down=top50%+q1,up=q8", False)),
    ],
)
def test_weights_that_are_zero_arrive_so_if_what_goes_down_keeps_them(name, keeps):
    assert codec(name).keeps_zeros is keeps


def test_feedback_without_a_scheme_of_what_comes_up_is_refused():
    """Nothing is owed of a change that comes as it is."""
    with pytest.raises(ConfigError, match=r"feedback=True .* up=None"):
        Codec(Blocks(8), None, feedback=True)
    with pytest.raises(ConfigError, match=r"feedback=True .* up=None"):
        codec("down=q8,up=none,feedback")


def test_a_wrong_scheme_of_a_codec_is_refused_as_such():
    with pytest.raises(ConfigError, match="unknown scheme 'q5': write one of q8"):
        codec("down=none,up=q5")


@pytest.mark.parametrize(
    "wrong",
    ["", "q1", "auto", "up=q4", "down=q4", "down=q4,up=", "Q4", 4, None, ["q4"]],
)
def test_what_is_no_codec_is_refused(wrong):
    with pytest.raises(ConfigError, match=re.escape(f"unknown codec {wrong!r}: ")):
        codec(wrong)


def test_an_unknown_codec_names_the_closest():
    with pytest.raises(
        ConfigError, match=r"unknown codec 'topk': did you mean 'topk-q4'"
    ):
        codec("topk")
    with pytest.raises(ConfigError, match="write one of none, q8, q4, q2, topk-q4, or"):
        codec("zzzzzz")


@pytest.mark.parametrize("wrong", ["q4", 4, Blocks])
def test_what_is_no_scheme_is_no_direction(wrong):
    with pytest.raises(ConfigError, match=r"up=.* must be a Scheme or None"):
        Codec(None, wrong)
