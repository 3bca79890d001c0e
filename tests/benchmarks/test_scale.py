"""An update costs the server the same whatever the size of the fleet."""

import math

import pytest
import torch

from benchmarks.scale import InstantGrid, ms_per_update
from flwr_asyncdrop import speed_levels
from tests.nightly import nightly

# Looking at every device, as before, makes it more than eight times as much; noise of a
# busy machine does not double the best of three.
MOST = 4


def sometimes_away(count):
    return speed_levels(count, availability=0.5)


@pytest.mark.parametrize(
    "fleet",
    [
        pytest.param(speed_levels, id="sim"),
        nightly(sometimes_away, id="away"),
        nightly(None, id="wall"),
    ],
)
def test_the_cost_of_an_update_does_not_grow_with_the_fleet(fleet):
    torch.set_num_threads(1)
    best = dict.fromkeys((100, 20_000), math.inf)
    for _ in range(3):  # in turn, so that other load falls on both
        for size in best:
            best[size] = min(best[size], ms_per_update(size, fleet, updates=80))
    assert best[20_000] < MOST * best[100]


def test_the_stub_answers_everybody_once():
    grid = InstantGrid(3)
    assert grid.get_node_ids() == [1000, 1001, 1002]
    assert grid.pull_messages(["message-0"]) == []
