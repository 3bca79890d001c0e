"""A reply whose parts are still on their way holds up no other."""

import time
from threading import Event
from types import FunctionType

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common.constant import ErrorCode

from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.pulls import OneByOne, ThreadedPulls, direct_pulls
from tests.grids import HandlerGrid, echo
from tests.runs import failing


def message(name):
    sent = Message(RecordDict({"config": ConfigRecord()}), 1, "train")
    sent.metadata.__dict__["_message_id"] = name
    return sent


class SlowLink:
    """Has a reply to everything; those in `parts` are whole when these are set.

    As Flower's SuperLink does: a reply is announced once, at once, and who asks for it
    after that is told that there is no such message.
    """

    def __init__(self, **parts):
        self.parts = parts
        self.announced = set()

    def pull(self, message_ids):
        mine = [name for name in message_ids if name not in self.announced]
        others = [name for name in message_ids if name in self.announced]
        self.announced.update(mine)
        for name in mine:
            if name in self.parts:
                self.parts[name].wait(60)
        return [
            *(failing(message(name), "Message Unavailable") for name in others),
            *(echo(message(name)) for name in mine),
        ]

    def begin(self, pulls, name):
        """Pull what is not whole yet, until that is under way."""
        assert pulled(pulls([name])) == []
        wait_until(lambda: name in self.announced)


def wait_until(is_true):
    started = time.monotonic()
    while not is_true():
        assert time.monotonic() - started < 60
        time.sleep(0.001)


def pulled(done):
    """The replies, an error in capitals."""
    replies = [reply for pull in done for reply in pull.replies]
    names = [reply.metadata.reply_to_message_id for reply in replies]
    return [
        name.upper() if reply.has_error() else name
        for name, reply in zip(names, replies, strict=True)
    ]


def pulled_at_last(pulls, message_ids):
    """What comes first of many pulls."""
    started = time.monotonic()
    while not (replies := pulled(pulls(message_ids))):
        assert time.monotonic() - started < 60
    return replies


def test_what_is_there_comes_with_the_call_that_asks():
    pulls = ThreadedPulls(SlowLink().pull, patience=60)
    assert pulled(pulls(["a", "b"])) == ["a", "b"]


def test_a_pull_that_takes_long_is_left_alone_and_comes_later():
    parts = Event()
    link = SlowLink(slow=parts)
    pulls = ThreadedPulls(link.pull, patience=0.05)
    started = time.monotonic()
    link.begin(pulls, "slow")
    assert time.monotonic() - started < 20
    assert pulled_at_last(pulls, ["slow", "quick"]) == ["quick"]
    parts.set()
    assert pulled_at_last(pulls, ["slow"]) == ["slow"]


def test_that_another_pull_has_taken_a_reply_is_no_error_of_its_own():
    """The error that the second pull gets for it never shows."""
    parts = Event()
    link = SlowLink(slow=parts)
    pulls = ThreadedPulls(link.pull, patience=0.05)
    link.begin(pulls, "slow")
    seen = [name for _ in range(5) for name in pulled(pulls(["slow"]))]
    assert seen == []
    parts.set()
    assert pulled_at_last(pulls, ["slow"]) == ["slow"]
    assert pulled(pulls([])) == []


def test_an_error_that_comes_after_the_reply_does_not_show():
    """Three pulls: the first brings the reply, the others their errors after it."""
    turns = [Event() for _ in range(3)]
    waiting = iter(turns)

    def pull(message_ids):
        turn = next(waiting)
        turn.wait(60)
        answer = echo if turn is turns[0] else failing
        return [answer(message("slow"))]

    pulls = ThreadedPulls(pull, patience=0.05)
    for _ in turns:
        assert pulled(pulls(["slow", "b", "c"])) == []
    turns[0].set()
    assert pulled_at_last(pulls, []) == ["slow"]
    for turn in turns[1:]:
        turn.set()
    while pulls._under_way:
        assert pulled(pulls([])) == []


def test_an_error_that_no_pull_has_a_better_answer_for_shows():
    parts = Event()

    def pull(message_ids):
        if "slow" in message_ids:
            parts.wait(60)
            return [echo(message("slow"))]
        return [failing(message(name)) for name in message_ids]

    pulls = ThreadedPulls(pull, patience=0.05)
    assert pulled(pulls(["slow", "dead"])) == []
    assert pulled(pulls(["dead"])) == []  # the first pull may have it
    parts.set()
    seen = pulled_at_last(pulls, ["dead"])
    while "DEAD" not in seen:
        seen += pulled(pulls(["dead"]))
    assert sorted(set(seen)) == ["DEAD", "slow"]


def test_an_error_shows_at_once_if_no_other_pull_is_under_way():
    pulls = ThreadedPulls(lambda ids: [failing(message("a"))], patience=60)
    assert pulled(pulls(["a"])) == ["A"]


def test_an_error_shows_though_each_pull_takes_until_the_next_has_begun():
    """As on a busy machine, where there was always one more that might know better."""
    begun = 0

    def pull(message_ids):
        nonlocal begun
        begun += 1
        mine, started = begun, time.monotonic()
        while begun == mine and time.monotonic() - started < 0.3:
            time.sleep(0.001)
        return [failing(message(name)) for name in message_ids]

    pulls = ThreadedPulls(pull, patience=0.05)
    calls = (pulled(pulls(["a", "b"])) for _ in range(40))
    assert sorted(next(filter(None, calls), ())) == ["A", "B"]


def test_what_a_device_has_raised_is_its_answer_whatever_other_pulls_may_have():
    parts = Event()

    def pull(message_ids):
        if "slow" in message_ids:
            parts.wait(60)
            return [echo(message("slow")), failing(message("broken"))]
        raised = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "no data")
        return [Message(raised, reply_to=message("broken"))]

    pulls = ThreadedPulls(pull, patience=0.05)
    assert pulled(pulls(["slow", "broken"])) == []
    assert pulled_at_last(pulls, ["broken"]) == ["BROKEN"]
    parts.set()
    seen = pulled_at_last(pulls, [])
    while pulls._under_way:
        seen += pulled(pulls([]))
    assert seen == ["slow"]


def test_replies_that_never_come_whole_do_not_use_up_the_pulls():
    link = SlowLink(**{f"lost{n}": Event() for n in range(9)})
    pulls = ThreadedPulls(link.pull, patience=0.05)
    for n in range(9):
        link.begin(pulls, f"lost{n}")
        assert pulled_at_last(pulls, [f"here{n}", f"lost{n}"]) == [f"here{n}"]
    # Nine pulls will never come back, and the next is as good as the first.
    assert pulled_at_last(pulls, ["last"]) == ["last"]
    for parts in link.parts.values():
        parts.set()


def test_after_replies_that_never_come_whole_were_given_up_the_next_one_comes():
    link = SlowLink(**{f"lost{n}": Event() for n in range(2)})
    pulls = ThreadedPulls(link.pull, patience=0.05)
    for n in range(2):
        link.begin(pulls, f"lost{n}")
    assert pulled_at_last(pulls, ["next"]) == ["next"]
    for parts in link.parts.values():
        parts.set()


def test_no_more_pulls_are_sent_than_replies_are_wanted_while_none_comes_back():
    gone, sent = Event(), []

    def never(message_ids):
        sent.append(message_ids)
        gone.wait(60)
        return []

    pulls = ThreadedPulls(never, patience=0.05)
    for _ in range(10):
        assert pulled(pulls(["a", "b", "c"])) == []
    wait_until(lambda: len(sent) >= 3)  # each in a thread of its own
    assert sent == [["a", "b", "c"]] * 3
    gone.set()


def test_what_a_pull_raises_comes_to_who_waits():
    def broken(message_ids):
        raise ConnectionError("the SuperLink is gone")

    (pull,) = ThreadedPulls(broken, patience=60)(["a"])
    assert isinstance(pull.error, ConnectionError)
    assert pull.message_ids == ["a"]


def test_what_a_pull_raises_drops_no_other():
    turn, outcomes = Event(), iter([ConnectionError("gone"), [echo(message("a"))]])

    def pull(message_ids):
        outcome = next(outcomes)
        turn.wait(60)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    pulls = ThreadedPulls(pull, patience=0.05)
    assert pulls(["a", "b"]) == pulls(["a", "b"]) == []
    turn.set()
    seen = []
    while not seen:
        seen += pulled(pulls(["a", "b"]))
    assert seen == ["a"]


def test_a_grid_that_answers_at_once_is_asked_by_the_thread_that_waits():
    grid = HandlerGrid(echo)
    pulls = direct_pulls(grid.pull_messages)
    (sent,) = grid.push_messages([message("a")])
    (pull,) = pulls([sent])
    assert pull.message_ids == [sent]
    assert [reply.metadata.reply_to_message_id for reply in pull.replies] == [sent]


class Poisoned:
    """Pulls fail that ask for one of the bad replies, and lose what came with them."""

    def __init__(self, *bad):
        self.bad = bad
        self.asked = []

    def __call__(self, message_ids):
        self.asked.append(list(message_ids))
        if set(self.bad) & set(message_ids):
            raise ValueError("this is no reply")
        return [echo(message(name)) for name in message_ids]


def replies_to(pull, names):
    try:
        return [reply.metadata.reply_to_message_id for reply in pull(names)]
    except ValueError:
        return None


def test_a_reply_that_cannot_be_read_holds_up_no_other():
    poisoned = Poisoned("b")
    pull = OneByOne(poisoned)
    assert replies_to(pull, ["a", "b", "c"]) is None
    came = replies_to(pull, ["a", "b", "c"])
    assert came == ["a", "c"]
    # From here on it is asked for alone, after the others.
    assert replies_to(pull, ["d", "b", "e"]) == ["d", "e"]
    assert poisoned.asked[-2:] == [["d", "e"], ["b"]]


@pytest.mark.parametrize("place", range(4))
def test_it_does_wherever_it_stands_and_costs_few_calls(place):
    names = ["a", "b", "c"]
    names.insert(place, "bad")
    poisoned, came = Poisoned("bad"), set()
    pull = OneByOne(poisoned)
    for _ in range(3):
        came |= set(replies_to(pull, [n for n in names if n not in came]) or ())
    assert came == {"a", "b", "c"}


def test_one_that_can_be_read_later_is_asked_for_with_the_others_again():
    poisoned = Poisoned("b")
    pull = OneByOne(poisoned)
    for _ in range(3):
        replies_to(pull, ["a", "b"])
    poisoned.bad = ()
    assert "b" in replies_to(pull, ["a", "b"])
    poisoned.asked.clear()
    assert replies_to(pull, ["a", "b"]) == ["a", "b"]
    assert poisoned.asked == [["a", "b"]]


def test_another_thread_may_find_one_that_cannot_be_read_meanwhile():
    """Whenever it does: here, while the names that were asked for are looked at."""
    pull = OneByOne(Poisoned("a", "b"))

    class Names(list):
        def __contains__(self, name):
            replies_to(pull, ["b"])
            return super().__contains__(name)

    replies_to(pull, ["a"])
    assert replies_to(pull, Names(["a", "c"])) == ["c"]


def test_an_outage_costs_one_call_a_look():
    poisoned = Poisoned("a", "b", "c")
    pull = OneByOne(poisoned)
    for _ in range(5):
        assert replies_to(pull, ["a", "b", "c"]) is None
    assert [len(asked) for asked in poisoned.asked] == [3, 1, 1, 1, 1]


@pytest.fixture
def remote():
    """A grid that the mailbox takes for one of Flower's remote ones."""

    def pull_messages(self, message_ids):
        return self.link.pull(message_ids)

    flowers = {
        "__name__": "flwr.remote_grid",
        "pull_objects": lambda ids, *, initial_backoff: None,
    }

    class RemoteGrid(HandlerGrid):
        link = SlowLink()

    RemoteGrid.pull_messages = FunctionType(pull_messages.__code__, flowers)
    return RemoteGrid(echo)


def test_a_mailbox_hands_out_what_is_whole_while_another_reply_is_on_its_way(remote):
    box = Mailbox(remote)
    slow, quick = (box.push(message(name)) for name in "ab")
    remote.link.parts[slow] = Event()
    assert box.wait([slow], timeout=0.1) is None
    wait_until(lambda: slow in remote.link.announced)
    reply = box.wait([slow, quick], timeout=60)
    assert reply.metadata.reply_to_message_id == quick
    remote.link.parts[slow].set()
    reply = box.wait([slow], timeout=60)
    assert reply.metadata.reply_to_message_id == slow
    assert not reply.has_error()
    assert box.duplicates == 0


def test_one_that_is_whole_when_it_was_given_up_is_no_duplicate(remote):
    box = Mailbox(remote)
    slow, *others = (box.push(message(name)) for name in "abc")
    remote.link.parts[slow] = Event()
    assert box.wait([slow], timeout=0.1) is None
    wait_until(lambda: slow in remote.link.announced)
    remote.link.parts[slow].set()
    for other in others:
        reply = box.wait([other], timeout=60)
        assert reply.metadata.reply_to_message_id == other
    assert box.duplicates == 0


def test_what_one_waits_for_comes_though_another_looks_for_its_own(remote):
    """A question to a new device, or an evaluation, takes no task's reply away."""
    box = Mailbox(remote)
    task, question = (box.push(message(name)) for name in "ab")
    remote.link.parts.update({task: Event(), question: Event()})
    assert box.wait([task], timeout=0.1) is None
    wait_until(lambda: task in remote.link.announced)
    remote.link.parts[task].set()
    assert box.poll([question]) == []  # what came back is the pull of the task
    reply = box.wait([task], timeout=60)
    remote.link.parts[question].set()
    assert not reply.has_error()
    assert not box.wait([question], timeout=60).has_error()
    assert box.duplicates == 0


@pytest.mark.parametrize("has_come", [False, True])
def test_a_reply_that_nobody_will_ask_for_is_not_kept(remote, has_come):
    box = Mailbox(remote)
    task, question = (box.push(message(name)) for name in "ab")
    remote.link.parts.update({task: Event(), question: Event()})
    assert box.wait([task], timeout=0.1) is None
    wait_until(lambda: task in remote.link.announced)
    if not has_come:
        box.forget([task])
    remote.link.parts[task].set()
    assert box.poll([question]) == []
    if has_come:
        box.forget([task])
    remote.link.parts[question].set()
    assert not box.wait([question], timeout=60).has_error()
    assert box.wait([task], timeout=60).has_error()  # asks the SuperLink once more
