import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from flwr_asyncdrop import wire
from flwr_asyncdrop.server.mailbox import Mailbox
from tests.grids import HandlerGrid, echo


def message(node=1):
    return Message(RecordDict({"config": ConfigRecord()}), node, "train")


def mailbox(grid):
    return Mailbox(grid, timer=grid.timer, sleep=grid.sleep)


def test_wait_returns_the_first_reply_of_many():
    grid = HandlerGrid(echo, delay=lambda sent: 10.0 / sent.metadata.dst_node_id)
    box = mailbox(grid)
    slow, fast = box.push(message(node=1)), box.push(message(node=5))
    reply = box.wait([slow, fast], timeout=60)
    assert reply.metadata.reply_to_message_id == fast
    assert 2.0 <= grid.now < 10.0
    assert box.wait([slow], timeout=60).metadata.reply_to_message_id == slow


def test_wait_gives_up_at_the_timeout_and_not_before():
    grid = HandlerGrid(echo, delay=lambda sent: 7.5)
    box = mailbox(grid)
    sent = box.push(message())
    assert box.wait([sent], timeout=5) is None
    assert grid.now == pytest.approx(5, abs=0.3)
    assert box.wait([sent], timeout=5) is not None


def test_each_reply_is_handed_out_once():
    grid = HandlerGrid(echo)
    box = mailbox(grid)
    first, second = box.push(message()), box.push(message())
    assert box.wait([first], timeout=1).metadata.reply_to_message_id == first
    assert [m.metadata.reply_to_message_id for m in box.poll([first, second])] == [
        second
    ]
    assert box.poll([first, second]) == []
    assert box.wait([first, second], timeout=1) is None


def test_a_reply_that_was_not_asked_for_stays_for_later():
    grid = HandlerGrid(echo)
    box = mailbox(grid)
    first, second = box.push(message()), box.push(message())
    assert len(box.poll([first, second])) == 2
    third = box.push(message())
    assert box.wait([third], timeout=1).metadata.reply_to_message_id == third


def test_a_second_reply_is_counted_and_thrown_away():
    grid = HandlerGrid(echo)
    box = mailbox(grid)
    sent, other = box.push(message()), box.push(message())
    (first, _) = grid.pull_messages([sent]), grid.pull_messages([other])
    replies = [[*first, *first], [*first]]  # twice at once, and again when it is gone
    grid.pull_messages = lambda ids: replies.pop(0) if replies else []
    assert box.wait([sent], timeout=1).metadata.reply_to_message_id == sent
    assert box.duplicates == 1
    assert box.wait([other], timeout=1) is None
    assert box.duplicates == 2
    assert box.wait([sent], timeout=1) is None


def test_without_messages_it_only_waits():
    grid = HandlerGrid(echo)
    grid.wait_any = lambda ids, timeout: pytest.fail("there is nothing to wait for")
    assert mailbox(grid).wait([], timeout=3) is None
    assert grid.now == pytest.approx(3, abs=0.3)


@pytest.mark.parametrize("answer", [[], [None], [""]])
def test_a_push_that_the_grid_refuses_has_no_id(answer):
    grid = HandlerGrid(echo)
    grid.refuse = answer
    assert mailbox(grid).push(message()) is None


def test_a_grid_that_can_block_is_not_polled_in_a_sleep():
    class Blocking(HandlerGrid):
        waited = 0

        def wait_any(self, message_ids, timeout):
            self.waited += 1
            self.now += timeout
            return True

    grid = Blocking(echo, delay=lambda sent: 1.0)
    box = Mailbox(grid, timer=grid.timer, sleep=pytest.fail)
    sent = box.push(message())
    assert box.wait([sent], timeout=5) is not None
    assert grid.waited > 0


@pytest.mark.parametrize("is_far", [False, True])
def test_the_arrays_of_a_message_travel_as_one_to_what_is_far(is_far):
    grid = HandlerGrid(echo)
    grid.answers_at_once = not is_far
    box = Mailbox(grid, timer=grid.timer, sleep=grid.sleep, packs=True)
    arrays = wire.to_record({"a": torch.ones(2), "b": torch.zeros(3)})
    task = Message(RecordDict({"arrays": arrays}), 3, "train", ttl=60)
    assert box.push(task) is not None
    (sent,) = grid.pushed
    assert wire.is_packed(sent.content["arrays"]) == is_far
    assert (sent.metadata.ttl, sent.metadata.dst_node_id) == (60, 3)
    assert len(task.content["arrays"]) == 2


class Forgetful(HandlerGrid):
    def __init__(self, handler):
        super().__init__(handler)
        self.forgotten = []

    def forget_messages(self, message_ids):
        self.forgotten += message_ids


def test_a_grid_is_told_what_nobody_will_ask_for():
    grid = Forgetful(echo)
    box = mailbox(grid)
    first, second, third = (box.push(message()) for _ in range(3))
    assert box.wait([first], timeout=1) is not None
    box.forget([first, second])
    assert grid.forgotten == [second]
    box.close()
    assert grid.forgotten == [second, third]
    box.close()
    assert grid.forgotten == [second, third]
