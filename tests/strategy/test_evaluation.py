import math

import pytest
import torch
from flwr.app import ConfigRecord

from flwr_asyncdrop import wire
from flwr_asyncdrop.strategy.driven import DrivenRun
from flwr_asyncdrop.strategy.evaluation import evaluation_messages
from tests.grids import HandlerGrid
from tests.runs import Run, plus_one, record

ONES = {"w": torch.ones(2)}


def session(nodes=3, seconds=None):
    grid = HandlerGrid(plus_one, node_ids=range(1, nodes + 1))
    return Run(grid, seconds, in_flight=2).open()


def messages_of(opened, fraction, number=1, nodes=range(1, 11)):
    return evaluation_messages(
        opened,
        number,
        record(ONES),
        ConfigRecord(),
        count=lambda nodes: math.ceil(fraction * nodes),
        node_ids=nodes,
    )


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.01, 1)])
def test_so_many_are_asked_each_once(fraction, count):
    messages = messages_of(session(nodes=10), fraction)
    nodes = [message.metadata.dst_node_id for message in messages]
    assert len(nodes) == len(set(nodes)) == count


def test_every_round_asks_others_and_the_same_seed_the_same():
    chosen = [
        [
            tuple(
                message.metadata.dst_node_id
                for message in messages_of(opened, 0.3, number)
            )
            for number in range(1, 9)
        ]
        for opened in (session(nodes=10), session(nodes=10))
    ]
    assert chosen[0] == chosen[1]
    assert len(set(chosen[0])) > 4


def test_only_nodes_that_are_connected_are_asked():
    messages = messages_of(session(nodes=10), 1.0, nodes=[2, 5])
    assert [message.metadata.dst_node_id for message in messages] == [2, 5]


def test_devices_that_train_are_asked_too():
    opened = session(nodes=2)
    DrivenRun(opened).train(1)
    assert len(messages_of(opened, 1.0, nodes=[1, 2])) == 2


def test_a_simulated_device_is_told_which_data_it_has():
    messages = messages_of(session(nodes=3, seconds=(1, 2, 3)), 1.0)
    tasks = [wire.read_task(message) for message in messages]
    assert [task.partition_id for task in tasks] == [0, 1, 2]
    assert {task.num_partitions for task in tasks} == {3}


def test_nobody_is_there():
    assert messages_of(session(), 1.0, nodes=[]) == []
