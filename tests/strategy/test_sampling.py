"""FedAvg's numbers of nodes mean what they mean there."""

import inspect

import pytest
from flwr.app import ConfigRecord, MessageType
from flwr.serverapp.strategy import FedAvg

from flwr_asyncdrop import AsyncFedAvg, SyncFedAvg
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.fleet.levels import speed_levels
from tests.grids import HandlerGrid
from tests.runs import plus_one, record
from tests.strategy.test_strategy import ZEROS, log, measuring  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_settling")


def sent(strategy, nodes, rounds=1):
    """Return how many training and evaluation messages a run sends."""
    grid = HandlerGrid(measuring(plus_one), node_ids=range(1, nodes + 1))
    strategy.start(grid, record(ZEROS), num_rounds=rounds, timeout=0)
    kinds = [message.metadata.message_type for message in grid.pushed]
    return kinds.count(MessageType.TRAIN), kinds.count(MessageType.EVALUATE)


def of_flower(nodes, **arguments):
    """Return how many messages Flower's own FedAvg makes in a round."""
    strategy, config = FedAvg(**arguments), ConfigRecord()
    grid = HandlerGrid(plus_one, node_ids=range(1, nodes + 1))
    arrays = record(ZEROS)
    return (
        len(list(strategy.configure_train(1, arrays, config, grid))),
        len(list(strategy.configure_evaluate(1, arrays, config, grid))),
    )


@pytest.mark.parametrize("nodes", [2, 3, 10])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"fraction_train": 0.5},
        {"fraction_train": 0.39, "fraction_evaluate": 0.59},
        {"fraction_evaluate": 0.0},
        {"fraction_train": 0.1, "min_train_nodes": 1, "fraction_evaluate": 0.1},
        {"min_evaluate_nodes": 1, "fraction_evaluate": 0.25},
    ],
)
@pytest.mark.parametrize("kind", [AsyncFedAvg, SyncFedAvg])
def test_a_round_trains_and_evaluates_as_much_as_fedavgs(kind, arguments, nodes):
    assert sent(kind(**arguments), nodes) == of_flower(nodes, **arguments)
    trained, evaluated = sent(kind(**arguments), nodes, rounds=3)
    expected = of_flower(nodes, **arguments)
    assert (trained, evaluated) == tuple(3 * count for count in expected)


@pytest.mark.parametrize("fleet", [None, speed_levels])
def test_only_on_the_wall_clock_rounds_are_evaluated_without_a_silent_client(
    fleet,
    log,  # noqa: F811
):
    def delay(message):
        nonlocal trained
        trained += message.metadata.message_type == MessageType.TRAIN
        grid.now = float(trained == 20)  # all replies are there, so nobody waits
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        return float((kind, node) == ("evaluate", 2) and trained < 20)

    strategy, trained = AsyncFedAvg(in_flight=1, fleet=fleet), 0
    grid = HandlerGrid(measuring(plus_one), node_ids=[1, 2], delay=delay)
    strategy.start(grid, record(ZEROS), num_rounds=20)
    left_out = "have not evaluated round 1 while 16 later ones began: 1 of 2"
    assert (left_out in log.text) == (fleet is None)


def test_in_flight_takes_the_place_of_the_fraction():
    assert sent(AsyncFedAvg(in_flight=3), nodes=10)[0] == 3


@pytest.mark.parametrize("other", [{"fraction_train": 1.0}, {"min_train_nodes": 2}])
def test_both_at_once_are_refused(other):
    with pytest.raises(ConfigError, match="both say how many devices train at once"):
        AsyncFedAvg(in_flight=3, **other)


@pytest.mark.parametrize(
    "least", ["min_train_nodes", "min_evaluate_nodes", "min_available_nodes"]
)
def test_the_run_waits_for_the_least_nodes(least):
    with pytest.raises(RunError, match=f"4 of 5 nodes connected .* lower {least}, or"):
        sent(AsyncFedAvg(**{least: 5}), nodes=4)
    sent(AsyncFedAvg(**{least: 5}), nodes=5)


@pytest.mark.parametrize(
    ("arguments", "least"),
    [
        ({}, "min_train_nodes"),
        ({"min_train_nodes": 1}, "min_evaluate_nodes"),
        ({"min_train_nodes": 1, "fraction_evaluate": 0.0}, None),
        ({"min_train_nodes": 1, "min_evaluate_nodes": 1}, None),
        ({"in_flight": 1}, None),
    ],
)
def test_the_least_nodes_are_two_by_default_as_flowers_are(arguments, least):
    """A run began with the first node, and had one task in flight to its end."""
    strategy = AsyncFedAvg(min_available_nodes=1, **arguments)
    if least is None:
        assert sent(strategy, nodes=1)[0] == 1
        return
    with pytest.raises(RunError, match=f"1 of 2 nodes connected .* lower {least}, or"):
        sent(strategy, nodes=1)


def test_nobody_is_waited_for_to_evaluate_where_nobody_does():
    arguments = {"fraction_evaluate": 0.0, "min_evaluate_nodes": 5}
    assert of_flower(4, **arguments) == (4, 0)
    assert sent(AsyncFedAvg(**arguments), nodes=4) == (4, 0)


def test_what_is_set_later_counts_too():
    strategy = AsyncFedAvg()
    strategy.fraction_evaluate, strategy.fraction_train = 0.0, 0.5
    assert sent(strategy, nodes=10) == (5, 0)
    strategy.in_flight = 3
    with pytest.raises(ConfigError, match=r"in_flight=3 and fraction_train=0.5 both"):
        sent(strategy, nodes=10)


@pytest.mark.parametrize("name", inspect.signature(FedAvg).parameters)
def test_a_subclass_reads_fedavgs_defaults(name):
    if not name.endswith("_fn"):
        assert getattr(AsyncFedAvg(), name) == getattr(FedAvg(), name)
        assert getattr(AsyncFedAvg(in_flight=8), name) == getattr(FedAvg(), name)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"fraction_train": 0.0}, r"fraction_train=0.0 must be in \(0, 1\]"),
        ({"fraction_train": 1.5}, "fraction_train=1.5"),
        ({"min_train_nodes": 0}, "min_train_nodes=0 must be at least 1"),
        ({"min_evaluate_nodes": -1}, "min_evaluate_nodes=-1 must be at least 0"),
        ({"min_available_nodes": "2"}, "min_available_nodes='2' must be"),
    ],
)
def test_wrong_values_are_echoed(arguments, says):
    with pytest.raises(ConfigError, match=says):
        AsyncFedAvg(**arguments)


def test_the_log_says_how_many_updates_there_will_be(log):  # noqa: F811
    sent(AsyncFedAvg(fraction_train=0.5), nodes=10, rounds=3)
    assert "3 rounds of 5 updates: 15 updates" in log.text


@pytest.mark.parametrize(
    ("strategy", "warnings"),
    [
        (AsyncFedAvg(fraction_train=0.5), 1),
        (SyncFedAvg(), 1),
        (SyncFedAvg(in_flight=6), 1),
        (AsyncFedAvg(in_flight=2), 0),
        (AsyncFedAvg(fraction_train=0.5, fleet=speed_levels), 0),
        (AsyncFedAvg(fraction_train=0.1), 0),
    ],
)
def test_the_log_says_once_that_more_nodes_have_come(strategy, warnings, log):  # noqa: F811
    def train(message):
        grid.node_ids = range(1, 9)
        return measuring(plus_one)(message)

    grid = HandlerGrid(train, node_ids=range(1, 5))
    strategy.fraction_evaluate = 0.0
    strategy.start(grid, record(ZEROS), num_rounds=5)
    said = [line for line in log.text.splitlines() if "connected by now" in line]
    assert len(said) == warnings
    if warnings:
        trains = 4 if isinstance(strategy, SyncFedAvg) else 2
        at_once = f"{trains} tasks at any moment, for 8 devices that are connected"
        assert at_once in said[0]
        wanted = 2 * trains if strategy.in_flight is None else 6
        # With more in flight its devices wait for as many as were there all the same.
        waits = isinstance(strategy, SyncFedAvg)
        assert (f"in_flight={wanted} says" in said[0]) is not waits
        assert f"min_available_nodes={wanted if waits else 8} waits" in said[0]


def test_the_log_does_not_say_that_nodes_have_come_who_were_there(log):  # noqa: F811
    """It did, where fewer nodes were there than in_flight, and all wait."""
    strategy = SyncFedAvg(in_flight=6, fraction_evaluate=0.0)
    grid = HandlerGrid(measuring(plus_one), node_ids=range(1, 5))
    strategy.start(grid, record(ZEROS), num_rounds=3)
    assert "4 nodes for 6 tasks in flight" in log.text
    assert "connected by now" not in log.text
