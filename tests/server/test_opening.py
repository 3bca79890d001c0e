import pytest

from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import ConfigError
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one


def session(nodes=3, in_flight=2, seconds=None, **changes):
    grid = HandlerGrid(plus_one, node_ids=range(1, nodes + 1))
    return Run(grid, seconds, in_flight=in_flight, **changes).open()


@pytest.mark.parametrize(
    ("nodes", "in_flight", "seconds", "slots", "updates"),
    [
        (3, 2, (1, 2, 3), 2, 2),
        (2, 8, (1, 2), 2, 2),  # a simulated fleet never grows
        (3, 2, None, 2, 2),
        (2, 8, None, 8, 2),  # a real one may
    ],
)
def test_slots_and_rounds_follow_the_nodes(nodes, in_flight, seconds, slots, updates):
    opened = session(nodes, in_flight, seconds)
    assert (opened.slots, opened.updates_per_round) == (slots, updates)
    assert opened.state.num_devices == nodes
    assert opened.dispatcher.fleet.num_ranks == slots


def test_a_simulated_fleet_keeps_its_size_whatever_profiles_there_are():
    opened = session(nodes=3, seconds=range(1, 9))
    opened.fleet.refresh(range(1, 9))
    assert len(opened.fleet) == len(opened.fleet.profiles) == 3
    assert opened.fleet.present == {0, 1, 2}


def test_the_buffer_is_that_of_the_devices_that_are_there():
    opened = session(2, 8, build_aggregator=lambda most: Buffered(most, waits=True))
    assert (opened.slots, opened.aggregator.waits_for) == (2, 2)


def test_a_wait_for_more_updates_than_devices_in_flight_is_refused():
    with pytest.raises(ConfigError, match="waits for 3 updates, more than the 2"):
        session(build_aggregator=lambda _: Buffered(3, waits=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"seconds": (1, 2, 3)},
        {"build_aggregator": lambda _: Buffered(2, waits=True)},
    ],
)
def test_a_queue_is_for_real_devices_that_do_not_wait(changes):
    with pytest.raises(ConfigError, match="queue_ahead=1: only real devices"):
        session(queue_ahead=1, **changes)


def test_a_run_that_resumes_with_more_nodes_is_not_said_to_lack_them(caplog):
    saved = session(nodes=2, in_flight=8).state_dict()
    assert "2 nodes for 8 tasks in flight: only 2 will train" in caplog.text
    caplog.clear()
    assert session(nodes=8, in_flight=8, saved=saved).slots == 8
    assert not caplog.text
    session(nodes=5, in_flight=8, saved=saved)
    assert "5 nodes for 8 tasks in flight: only 5 will train" in caplog.text
