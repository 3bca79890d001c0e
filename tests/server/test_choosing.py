"""Which idle device a selection of a user's own is let choose."""

import numpy as np
import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.fleet.selection import Selection
from flwr_asyncdrop.server.choosing import DeviceChooser
from flwr_asyncdrop.server.state import RunState


class Own(Selection):
    def __init__(self, change):
        self.change = change

    def choose(self, idle, ranks, busy_ranks, generator):
        self.change(idle, ranks)
        return int(idle[0])


def chooser(change):
    fleet = Fleet(4, [DeviceProfile(float(seconds)) for seconds in (1, 2, 3, 4)])
    fleet.refresh(range(4))
    return fleet, DeviceChooser(fleet, Own(change))


def test_ranks_that_a_selection_changes_in_place_stay_those_of_the_fleet():
    fleet, choosing = chooser(lambda idle, ranks: ranks.fill(0))
    assert choosing.next_idle(RunState.start_from({}, 0), {0}) == 1
    assert fleet.speeds.ranks.tolist() == [0, 1, 2, 3]


def test_a_device_that_a_selection_writes_among_the_idle_ones_is_not_idle():
    _, choosing = chooser(lambda idle, ranks: np.subtract(idle, 1, out=idle))
    with pytest.raises(ConfigError, match="Own has chosen 0, which is no device"):
        choosing.next_idle(RunState.start_from({}, 0), {0})


def test_a_selection_may_order_the_idle_ones_in_place():
    _, choosing = chooser(lambda idle, ranks: idle.__setitem__(..., idle[::-1].copy()))
    assert choosing.next_idle(RunState.start_from({}, 0), {0}) == 3
