"""A reply whose parts are still on their way holds up no other."""

import sys
import time
from threading import Event, active_count
from types import ModuleType

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.pulls import Pulls
from tests.grids import HandlerGrid, echo


class SlowLink:
    """Announces every reply at once, once; those in `parts` block until they are set.

    As Flower does: what one pull has been told of, no other is.
    """

    def __init__(self, **parts):
        self.parts = parts
        self.told = set()
        self.calls = 0

    def pull(self, message_ids):
        self.calls += 1
        mine = [name for name in message_ids if name not in self.told]
        self.told.update(mine)
        for name in mine:
            if name in self.parts:
                self.parts[name].wait(20)
        return mine


def pulled(done):
    return [name for pull in done for name in pull.replies]


def test_what_is_there_comes_with_the_call_that_asks():
    assert pulled(Pulls(SlowLink().pull)(["a", "b"])) == ["a", "b"]


def test_a_pull_that_takes_long_is_left_alone_and_comes_later():
    parts = Event()
    link = SlowLink(slow=parts)
    pulls = Pulls(link.pull, patience=0.05)
    started = time.monotonic()
    assert pulled(pulls(["slow"])) == []
    assert time.monotonic() - started < 5
    assert pulled(pulls(["slow", "quick"])) == ["quick"]
    parts.set()
    while not (later := pulled(pulls(["slow"]))):
        assert time.monotonic() - started < 15
    assert later == ["slow"]


def test_replies_that_never_come_whole_do_not_use_up_the_pulls():
    link = SlowLink(**{f"lost{n}": Event() for n in range(9)})
    pulls = Pulls(link.pull, patience=0.05)
    for n in range(9):
        assert pulled(pulls([f"lost{n}"])) == []
        assert pulled(pulls([f"here{n}", f"lost{n}"])) == [f"here{n}"]
    # Nine pulls will never come back, and the next is as good as the first.
    assert pulled(pulls(["last"])) == ["last"]
    for parts in link.parts.values():
        parts.set()


def test_no_more_pulls_are_sent_than_replies_are_wanted_while_none_comes_back():
    gone = Event()

    def never(message_ids):
        gone.wait(20)
        return []

    before, pulls = active_count(), Pulls(never, patience=0.01)
    for _ in range(10):
        assert pulls(["a", "b", "c"]) == []
    assert active_count() == before + 3
    gone.set()


def test_what_a_pull_raises_comes_to_who_waits():
    def broken(message_ids):
        raise ConnectionError("the SuperLink is gone")

    with pytest.raises(ConnectionError, match="is gone"):
        Pulls(broken)(["a"])


def pull_objects(ids, *, initial_backoff=1.0):
    """What Flower's grids import, as far as the mailbox looks at it."""


@pytest.fixture
def remote(monkeypatch):
    """A grid that the mailbox takes for one of Flower's remote ones."""
    module = ModuleType("remote_grid")
    module.pull_objects = pull_objects
    monkeypatch.setitem(sys.modules, "remote_grid", module)

    class RemoteGrid(HandlerGrid):
        def __init__(self):
            super().__init__(echo)
            self.parts = {}

        def pull_messages(self, message_ids):
            replies = super().pull_messages(message_ids)
            for reply in replies:
                event = self.parts.get(reply.metadata.reply_to_message_id)
                if event is not None:
                    event.wait(20)
            return replies

    monkeypatch.setattr(RemoteGrid, "__module__", "remote_grid")
    return RemoteGrid()


def test_a_mailbox_hands_out_what_is_whole_while_another_reply_is_on_its_way(remote):
    box = Mailbox(remote)
    message = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
    slow = box.push(message)
    remote.parts[slow] = Event()
    assert box.wait([slow], timeout=0.1) is None
    quick = box.push(Message(RecordDict({"config": ConfigRecord()}), 2, "train"))
    reply = box.wait([slow, quick], timeout=10)
    assert reply.metadata.reply_to_message_id == quick
    remote.parts[slow].set()
    assert box.wait([slow], timeout=10).metadata.reply_to_message_id == slow
    assert box.duplicates == 0


def test_one_that_is_whole_when_it_was_given_up_is_no_duplicate(remote):
    box = Mailbox(remote)
    message = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
    slow, other = box.push(message), None
    remote.parts[slow] = Event()
    assert box.wait([slow], timeout=0.1) is None
    remote.parts[slow].set()
    other = box.push(Message(RecordDict({"config": ConfigRecord()}), 2, "train"))
    assert box.wait([other], timeout=10) is not None
    assert box.wait([other], timeout=0.5) is None
    assert box.duplicates == 0
