"""Arguments as a checkpoint has them, and what differs between two runs."""

from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np
import pytest
import torch

from flwr_asyncdrop.aggregation import Buffered, Mixing
from flwr_asyncdrop.aggregation.weighting import polynomial
from flwr_asyncdrop.exceptions import CheckpointError
from flwr_asyncdrop.fleet.levels import speed_levels
from flwr_asyncdrop.fleet.selection import Selection, Stratified
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.server.same_arguments import check_same, described
from flwr_asyncdrop.server.schedule import StepDecay
from tests.states import saved_and_read


class Nearest(Selection):
    """Somebody's own, with what is no number."""

    def __init__(self, place, net=None):
        self._place = place
        self.net = net

    def choose(self, idle, ranks, busy_ranks, generator):
        return int(idle[0])


@dataclass(frozen=True)
class Own:
    inner: StepDecay


class Order(Enum):
    UP = 1
    DOWN = 2


def differences(before, now):
    """Return what is said of an argument that was saved, and is another one now."""
    were = saved_and_read({"it": described(before)})
    try:
        check_same(were, {"it": described(now)})
    except CheckpointError as error:
        return str(error).partition("(")[2].rpartition(")")[0]
    return ""


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        (0.5, 0.6, "it 0.5, now 0.6"),
        (None, Mixing(0.5), "it None, now 'Mixing'"),
        (Mixing(0.5), Buffered(3), "it 'Mixing', now 'Buffered'"),
        (Mixing(0.5), Mixing(0.6), "it.alpha 0.5, now 0.6"),
        (
            Mixing(0.5, partial(polynomial, a=1)),
            Mixing(0.5, partial(polynomial, a=2)),
            "it.weighting.a 1, now 2",
        ),
        (Buffered(3), Buffered(3, server_lr=0.5), "it.server_step.lr 1.0, now 0.5"),
        (RandomMask(0.2), RandomMask(0.3), "it.drop_rate.rate 0.2, now 0.3"),
        (StepDecay((1, 2)), StepDecay((1, 3)), "it.milestones [1, 2], now [1, 3]"),
        (Own(StepDecay((1,))), Own(StepDecay()), "it.inner.milestones [1], now []"),
        (Stratified(), Nearest(1), "it 'Stratified', now 'Nearest'"),
        (Nearest((0, 1)), Nearest((0, 2)), "it.place [0, 1], now [0, 2]"),
        (Nearest(Order.UP), Nearest(Order.DOWN), "it.place.value 'UP', now 'DOWN'"),
        (Order.UP, Order.DOWN, "it.value 'UP', now 'DOWN'"),
        (Nearest({1, 2}), Nearest({2}), "it.place.value ['1', '2'], now ['2']"),
        (speed_levels, described, "it 'speed_levels', now 'described'"),
        ({"mu": 0.1}, {"mu": 0.2}, "it.mu 0.1, now 0.2"),
        ({"mu": 0.1}, {}, "it.mu 0.1, now None"),
        ({}, {"mu": 0.1}, "it.mu None, now 0.1"),
        (partial(min), partial(min, key=abs), "it.key None, now 'abs'"),
        (float("nan"), 1.0, "it nan, now 1.0"),
    ],
)
def test_what_differs_is_named(before, now, says):
    assert differences(before, now) == says
    assert not differences(before, before)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (30.0, 30),
        (np.float64(0.5), 0.5),
        (np.array(2), 2),
        (float("nan"), float("nan")),
        (StepDecay([1, 2]), StepDecay((1.0, 2.0))),
        (Nearest(1, torch.nn.Linear(2, 2)), Nearest(1, torch.nn.Linear(2, 2))),
        (Nearest(lambda: 1), Nearest(lambda: 1)),
        (Nearest({"a", "b", max}), Nearest({"b", max, "a"})),
    ],
)
def test_what_is_as_good_as_the_same(before, now):
    assert not differences(before, now)


def test_an_argument_younger_than_the_checkpoint_is_not_compared():
    check_same({}, {"it": described(Mixing())})


def test_an_object_that_holds_itself_is_known_by_its_class():
    itself = Mixing(0.5)
    itself.weighting = [itself]
    assert described(itself) == "Mixing"


def test_keys_that_are_objects_are_known_by_their_class():
    def keyed():
        return {object(): 1, torch.rand(2): 2, max: 3}

    assert differences(keyed(), keyed()) == ""
    assert differences(keyed(), {**keyed(), object(): 4}) != ""


def test_a_dtype_is_no_number():
    assert differences(Nearest(np.dtype("f4")), Nearest(np.dtype("f4"))) == ""


@pytest.mark.parametrize("place", [Order.UP, {1}])
def test_what_a_version_before_knew_by_its_class_alone_is_not_compared(place):
    were = {"class": "Nearest", "place": type(place).__qualname__, "net": None}
    check_same({"it": were}, {"it": described(Nearest(place))})
