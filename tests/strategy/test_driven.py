import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.strategy.driven import DrivenRun
from tests.grids import HandlerGrid
from tests.runs import Run, answer, plus_one


def driven(nodes=3, in_flight=2, **changes):
    grid = HandlerGrid(plus_one, node_ids=range(1, nodes + 1))
    return DrivenRun(Run(grid, in_flight=in_flight, **changes).open())


def test_a_synchronous_round_is_merged_in_the_order_of_dispatch():
    # With alpha = 1 the last to be merged is what stays.
    rounds = driven(nodes=2, alpha=1.0)
    state, messages = rounds.run.state, rounds.train(1)
    nodes = [order.node_id for order in state.in_flight.values()]
    replies = [
        answer(message, {"w": torch.full((2,), float(message.metadata.dst_node_id))})
        for message in messages
    ]
    assert len(rounds.merge(reversed(replies))) == 2
    assert state.arrays["w"].tolist() == [float(nodes[-1])] * 2
    assert not state.in_flight


def test_a_cohort_steps_without_those_that_have_not_replied():
    rounds = driven(in_flight=3, build_aggregator=lambda n: Buffered(n, waits=True))
    for steps in (1, 2):  # each with the mean of two
        messages = rounds.train(steps)
        assert len(rounds.merge([plus_one(m) for m in messages[1:]])) == 2
        assert rounds.run.state.version == steps
        assert rounds.run.state.arrays["w"].tolist() == [steps, steps]


def test_a_buffer_that_is_smaller_than_the_cohort_keeps_what_is_left():
    rounds = driven(in_flight=3, build_aggregator=lambda _: Buffered(2, waits=True))
    rounds.merge([plus_one(m) for m in rounds.train(1)])
    assert rounds.run.state.version == 1


def test_a_round_begins_with_no_device_busy():
    rounds = driven(nodes=2)
    for number in (1, 2):  # the replies of round 1 never came
        assert len(rounds.train(number)) == 2
    assert rounds.run.state.dispatched == 4


def test_a_round_goes_on_with_what_the_caller_has():
    rounds = driven(nodes=2, config={"lr": 0.5})
    rounds.proceed({"w": torch.full((2,), 7.0)}, {"lr": 0.25}, [2, 9])
    messages = rounds.train(2)
    assert {message.metadata.dst_node_id for message in messages} == {2, 9}
    assert {message.content["config"]["lr"] for message in messages} == {0.25}
    sent = wire.from_record(messages[0].content["arrays"])
    assert sent["w"].tolist() == [7, 7]
    run = rounds.run
    assert run.state.num_devices == len(run.fleet) == 3  # one has joined
