import pytest

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.server.nodes import Nodes
from tests.grids import HandlerGrid, echo


class Registering(HandlerGrid):
    """Registers one more node whenever time moves on, as Flower's engine does."""

    def __init__(self, total):
        super().__init__(echo, node_ids=())
        self.total = total

    def sleep(self, seconds):
        super().sleep(seconds)
        if len(self.node_ids) < self.total:
            self.node_ids.append(self.total - len(self.node_ids))


def nodes(grid):
    return Nodes(grid, timer=grid.timer, sleep=grid.sleep)


def test_waits_until_no_more_nodes_are_coming():
    assert nodes(Registering(total=5)).wait_for(1, patience=60) == [1, 2, 3, 4, 5]


def test_too_few_nodes_in_time_is_an_error_that_says_how_many():
    with pytest.raises(RunError, match=r"3 of 4 nodes connected within 10 s"):
        nodes(Registering(total=3)).wait_for(4, patience=10)


def test_a_wait_for_nodes_is_told_of_once(caplog):
    nodes(Registering(total=8)).wait_for(8, patience=60)
    assert caplog.text == "", "they come within seconds"
    with pytest.raises(RunError):
        nodes(Registering(total=3)).wait_for(4, patience=60)
    (said,) = caplog.messages
    assert said.startswith("waiting for 4 nodes, for up to")
    assert "num-supernodes=4" in said


def test_enough_nodes_are_taken_when_the_time_is_up():
    found = nodes(Registering(total=1000)).wait_for(2, patience=3)
    assert 2 <= len(found) < 1000


def test_a_grid_that_has_all_its_nodes_is_not_waited_for():
    grid = HandlerGrid(echo)
    grid.has_all_nodes = True
    assert nodes(grid).wait_for(1, patience=60) == [1, 2, 3]
    assert grid.now == 0


def test_watching_ends_when_the_nodes_will_do():
    grid, seen = Registering(total=5), []
    found = nodes(grid).watch(lambda ids: seen.append(ids) or 4 in ids, patience=60)
    assert found
    assert seen == [[], [5], [4, 5]]


def test_watching_ends_when_the_time_is_up():
    grid = Registering(total=3)
    assert not nodes(grid).watch(lambda ids: 9 in ids, patience=10)
    assert grid.now == pytest.approx(10, abs=0.6)
