"""How often the grid is asked for its nodes."""

from flwr_asyncdrop.server.nodes import Nodes
from tests.grids import HandlerGrid, echo


class SlowGrid(HandlerGrid):
    """A grid whose list of nodes takes its time."""

    looks = 0
    seconds = 0.2

    def get_node_ids(self):
        self.looks += 1
        self.now += self.seconds
        return super().get_node_ids()


def nodes_of(grid):
    return Nodes(grid, timer=grid.timer, sleep=grid.sleep)


def test_a_recent_look_will_do_for_twenty_times_as_long_as_it_took():
    grid = SlowGrid(echo, [3, 1])
    nodes = nodes_of(grid)
    assert nodes.ids() == (1, 3)
    grid.node_ids = [2]
    grid.now = 4.1
    assert nodes.ids(recent=True) == (1, 3)
    grid.now = 4.3
    assert nodes.ids(recent=True) == (2,)
    assert grid.looks == 2


def test_a_look_that_waited_for_the_grid_is_not_recent_for_long():
    grid = SlowGrid(echo, [3, 1])
    grid.seconds = 30.0  # of retries, while the SuperLink was gone
    nodes = nodes_of(grid)
    assert nodes.ids() == (1, 3)
    grid.node_ids = [2]
    grid.now += 9.9
    assert nodes.ids(recent=True) == (1, 3)
    grid.now += 0.2
    assert nodes.ids(recent=True) == (2,)


def test_without_recent_it_is_asked_every_time():
    grid = SlowGrid(echo, [3, 1])
    nodes = nodes_of(grid)
    first = nodes.ids()
    assert nodes.ids() is first  # nothing has changed, and nobody compares
    grid.node_ids = [2]
    assert nodes.ids() == (2,)
    assert grid.looks == 3


def test_a_grid_that_has_all_nodes_is_asked_once():
    grid = SlowGrid(echo, [3, 1])
    grid.has_all_nodes = True
    nodes = nodes_of(grid)
    assert [nodes.ids(), nodes.ids()] == [(1, 3), (1, 3)]
    assert grid.looks == 1
