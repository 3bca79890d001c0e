import math

import pytest
import torch
from flwr.app import ConfigRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.strategy.rounds import (
    evaluation_messages,
    merge_all,
    proceed,
    train_messages,
)
from tests.grids import HandlerGrid
from tests.runs import Run, answer, plus_one, record

ONES = {"w": torch.ones(2)}


def session(nodes=3, in_flight=2, seconds=None, **changes):
    grid = HandlerGrid(plus_one, node_ids=range(1, nodes + 1))
    return Run(grid, seconds, in_flight=in_flight, **changes).open()


def test_a_synchronous_round_is_merged_in_the_order_of_dispatch():
    # With alpha = 1 the last to be merged is what stays.
    opened = session(nodes=2, alpha=1.0)
    messages = train_messages(opened, 1)
    nodes = [order.node_id for order in opened.state.in_flight.values()]
    replies = [
        answer(message, {"w": torch.full((2,), float(message.metadata.dst_node_id))})
        for message in messages
    ]
    assert len(merge_all(opened, reversed(replies))) == 2
    assert opened.state.arrays["w"].tolist() == [float(nodes[-1])] * 2
    assert not opened.state.in_flight


def test_a_cohort_steps_without_those_that_have_not_replied():
    opened = session(in_flight=3, build_aggregator=lambda n: Buffered(n, waits=True))
    for steps in (1, 2):  # each with the mean of two
        messages = train_messages(opened, steps)
        assert len(merge_all(opened, [plus_one(m) for m in messages[1:]])) == 2
        assert opened.state.version == steps
        assert opened.state.arrays["w"].tolist() == [steps, steps]


def test_a_buffer_that_is_smaller_than_the_cohort_keeps_what_is_left():
    opened = session(in_flight=3, build_aggregator=lambda _: Buffered(2, waits=True))
    merge_all(opened, [plus_one(m) for m in train_messages(opened, 1)])
    assert opened.state.version == 1


def test_a_round_begins_with_no_device_busy():
    opened = session(nodes=2)
    for number in (1, 2):  # the replies of round 1 never came
        assert len(train_messages(opened, number)) == 2
    assert opened.state.dispatched == 4


def test_a_round_goes_on_with_what_the_caller_has():
    opened = session(nodes=2, config={"lr": 0.5})
    proceed(opened, {"w": torch.full((2,), 7.0)}, {"lr": 0.25}, [2, 9])
    messages = train_messages(opened, 2)
    assert {message.metadata.dst_node_id for message in messages} == {2, 9}
    assert {message.content["config"]["lr"] for message in messages} == {0.25}
    sent = wire.from_record(messages[0].content["arrays"])
    assert sent["w"].tolist() == [7, 7]
    assert opened.state.num_devices == len(opened.fleet) == 3  # one has joined


class TestEvaluationMessages:
    def messages(self, opened, fraction, number=1, nodes=range(1, 11)):
        return evaluation_messages(
            opened,
            number,
            record(ONES),
            ConfigRecord(),
            count=lambda nodes: math.ceil(fraction * nodes),
            node_ids=nodes,
        )

    @pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.01, 1)])
    def test_so_many_are_asked_each_once(self, fraction, count):
        messages = self.messages(session(nodes=10), fraction)
        nodes = [message.metadata.dst_node_id for message in messages]
        assert len(nodes) == len(set(nodes)) == count

    def test_every_round_asks_others_and_the_same_seed_the_same(self):
        chosen = [
            [
                tuple(
                    message.metadata.dst_node_id
                    for message in self.messages(opened, 0.3, number)
                )
                for number in range(1, 9)
            ]
            for opened in (session(nodes=10), session(nodes=10))
        ]
        assert chosen[0] == chosen[1]
        assert len(set(chosen[0])) > 4

    def test_only_nodes_that_are_connected_are_asked(self):
        messages = self.messages(session(nodes=10), 1.0, nodes=[2, 5])
        assert [message.metadata.dst_node_id for message in messages] == [2, 5]

    def test_devices_that_train_are_asked_too(self):
        opened = session(nodes=2)
        train_messages(opened, 1)
        assert len(self.messages(opened, 1.0, nodes=[1, 2])) == 2

    def test_a_simulated_device_is_told_which_data_it_has(self):
        messages = self.messages(session(nodes=3, seconds=(1, 2, 3)), 1.0)
        tasks = [wire.read_task(message) for message in messages]
        assert [task.partition_id for task in tasks] == [0, 1, 2]
        assert {task.num_partitions for task in tasks} == {3}

    def test_nobody_is_there(self):
        assert self.messages(session(), 1.0, nodes=[]) == []
