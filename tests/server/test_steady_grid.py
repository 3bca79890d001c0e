"""What a grid raises costs a message at most; what never returns costs no run."""

import threading
import time
from types import FunctionType

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flwr_asyncdrop.exceptions import GridError, GridLostError, RunError
from flwr_asyncdrop.flower_internals.identity import unsent_copy
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.nodes import Nodes
from flwr_asyncdrop.server.steady_grid import SteadyGrid
from tests.faulty import CALLS, ERRORS, FaultyGrid, from_then_on, once
from tests.grids import HandlerGrid, echo
from tests.runs import Run, plus_one

GONE = ConnectionError("gone")


def message(node=1):
    return Message(RecordDict({"config": ConfigRecord({"a": 1})}), node, "train")


def steady(faults, **options):
    """A steady grid on the time of the grid below, which fails."""
    inner = HandlerGrid(echo)
    faulty = FaultyGrid(inner, faults)
    return SteadyGrid(faulty, timer=inner.timer, sleep=inner.sleep, **options), inner


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_push_that_raises_is_tried_again(error):
    grid, inner = steady(once("push_messages", 0, error))
    assert grid.push(message()) == "m0"
    assert inner.now == pytest.approx(0.1)
    assert not grid.pushes_fail


def test_a_message_is_given_up_after_three_seconds_with_the_reason():
    grid, inner = steady(from_then_on("push_messages", 0, GONE))
    with pytest.raises(GridError, match="push_messages failed: ConnectionError: gone"):
        grid.push(message())
    assert 3 <= inner.now < 4.5
    assert grid.push_due_in > 0
    # Others that follow are tried once each, later and later.
    before = inner.now
    with pytest.raises(GridError):
        grid.push(message())
    assert inner.now == before


def test_one_that_insists_is_lost_at_the_patience_and_not_before():
    faults = from_then_on("push_messages", 0, GONE)
    grid, inner = steady(faults, insists=True, patience=60)
    with pytest.raises(GridLostError, match=r"for 60 s .*ConnectionError: gone"):
        grid.push(message())
    assert inner.now == pytest.approx(60, abs=0.1)


def test_pulls_that_fail_are_nothing_until_the_patience_is_over():
    grid, inner = steady(from_then_on("pull_messages", 0, GONE), patience=20)
    while inner.now < 19.9:
        assert grid.pulls(["m0"]) == []
        inner.sleep(0.05)
    inner.sleep(0.2)
    with pytest.raises(GridLostError, match="pull_messages"):
        grid.pulls(["m0"])


def test_an_outage_is_asked_ever_more_rarely():
    inner = HandlerGrid(echo)
    faulty = FaultyGrid(inner, from_then_on("pull_messages", 0, GONE))
    grid = SteadyGrid(faulty, timer=inner.timer, sleep=inner.sleep)
    while inner.now < 60:
        grid.pulls(["m0"])
        inner.sleep(0.05)
    # 0.1, 0.2 ... 3.2 s, then one every 5 s
    assert 12 <= faulty.calls["pull_messages"] <= 20


def test_the_log_has_a_line_at_the_beginning_and_one_at_the_end(caplog):
    down = [True]
    grid, inner = steady(lambda *call: GONE if down else None, patience=600)
    with pytest.raises(GridError):
        grid.push(message())
    for _ in range(200):
        grid.pulls(["m0"])
        inner.sleep(0.1)
    down.clear()
    inner.sleep(5)
    grid.pulls(["m0"])
    assert len(caplog.messages) == 1  # pushes have not been tried yet
    assert grid.push(message()) == "m0"
    first, last = caplog.messages
    assert first == (
        "Flower's grid fails (push_messages: ConnectionError: gone): its calls are "
        "tried again for 600 s"
    )
    assert last.startswith("Flower's grid works again after 2")


def test_nodes_are_those_seen_last_while_they_cannot_be_asked_for():
    grid, inner = steady(from_then_on("get_node_ids", 1, GONE))
    assert grid.get_node_ids() == [1, 2, 3]
    inner.node_ids.append(4)
    assert grid.get_node_ids() == [1, 2, 3]
    assert inner.now < 4.5


def test_nodes_are_asked_with_pauses_also_for_longer_than_the_patience():
    def faults(name, number):
        inner.now += 1e-3
        return GONE if number else None

    inner = HandlerGrid(echo)
    faulty = FaultyGrid(inner, faults)
    grid = SteadyGrid(faulty, timer=inner.timer, sleep=inner.sleep, patience=1)
    while inner.now < 60:
        assert grid.get_node_ids() == [1, 2, 3]
        inner.sleep(0.05)
    # 0.1, 0.2 ... 3.2 s, then one every 5 s
    assert 12 <= faulty.calls["get_node_ids"] <= 20


def test_nodes_that_were_never_seen_are_waited_for_and_the_reason_is_said():
    grid, inner = steady(from_then_on("get_node_ids", 0, GONE))
    nodes = Nodes(grid, timer=inner.timer, sleep=inner.sleep)
    with pytest.raises(RunError, match=r"0 of 2 nodes .* 30 s \(.*gone\): start more"):
        nodes.wait_for(2, patience=30)
    assert inner.now == pytest.approx(30, abs=4)


def test_a_copy_of_a_message_has_its_content_and_no_id():
    sent = message()
    copy = unsent_copy(sent)
    content_id = sent.object_id  # by which Flower's remote grids name it
    sent.metadata.__dict__["_message_id"] = content_id
    assert copy.metadata.message_id == ""
    assert copy.content is sent.content
    assert copy.object_id == content_id
    assert unsent_copy(sent).object_id == content_id


def test_what_wait_any_raises_is_slept_over():
    inner = HandlerGrid(echo, delay=lambda sent: 2.0)
    inner.wait_any = lambda ids, timeout: (_ for _ in ()).throw(OSError("broken pipe"))
    box = Mailbox(inner, timer=inner.timer, sleep=inner.sleep)
    sent = box.push(message())
    assert box.wait([sent], timeout=10) is not None
    assert 2 <= inner.now < 3


@pytest.mark.parametrize("clock", [{}, {"seconds": (1.0, 2.0, 3.0)}])
def test_not_sent_has_the_true_reason_and_the_run_goes_on(clock):
    """One message cannot be pushed at all; every other can."""

    def faults(name, number):
        return ValueError("too large") if name == "push_messages" and poisoned else None

    poisoned, inner = [], HandlerGrid(plus_one)
    run = Run(inner, **clock)
    time_of = {"timer": inner.timer, "sleep": inner.sleep}
    faulty = FaultyGrid(inner, faults)
    run.mailbox = Mailbox(faulty, **time_of)
    push = faulty.push_messages

    def push_messages(messages):
        poisoned[:] = [m for m in messages if m.metadata.dst_node_id == 2]
        return push(messages)

    faulty.push_messages = push_messages
    run.go()
    assert run.state.updates == 6
    assert not run.state.ended
    assert set(run.state.failures) == {"not-sent"}
    device, kind, reason = run.recorder.failures[0]
    assert (device, kind) == (1, "not-sent")
    assert reason == "push_messages failed: ValueError: too large"
    # An outage is no fault of a device, but each of these is one of its own.
    assert run.run.fleet.readiness.quarantined_until


class Hanging:
    """A remote grid of Flower's whose SuperLink is away: its calls wait for it."""

    def __init__(self, *hanging):
        self.hanging = hanging
        self.back = threading.Event()

    def grid(self):
        def pull_messages(self, message_ids):
            return self.answer("pull_messages", message_ids)

        flowers = {
            "__name__": "flwr.remote_grid",
            "pull_objects": lambda ids, *, initial_backoff: None,
        }
        link = self

        class RemoteGrid(HandlerGrid):
            def answer(self, name, *arguments):
                if name in link.hanging:
                    link.back.wait(60)
                return getattr(super(), name)(*arguments)

            def push_messages(self, messages):
                return self.answer("push_messages", messages)

            def get_node_ids(self):
                return self.answer("get_node_ids")

        RemoteGrid.pull_messages = FunctionType(pull_messages.__code__, flowers)
        return RemoteGrid(echo)


@pytest.fixture
def hanging():
    made = []

    def make(*names):
        made.append(Hanging(*names))
        return made[-1]

    yield make
    for each in made:
        each.back.set()


def test_a_push_that_never_returns_is_lost_at_the_patience(hanging):
    grid = SteadyGrid(hanging("push_messages").grid(), patience=0.3)
    began = time.monotonic()
    with pytest.raises(GridLostError, match="TimeoutError: it has not returned for"):
        grid.push(message())
    assert 0.3 <= time.monotonic() - began < 30


def test_a_push_that_waits_for_its_superlink_is_not_pushed_again(hanging):
    link = hanging("push_messages")
    inner = link.grid()
    grid = SteadyGrid(inner, patience=60)
    threading.Timer(0.3, link.back.set).start()
    assert grid.push(message()) == "m0"
    assert len(inner.pushed) == 1


def test_looks_for_nodes_that_never_return_are_one_and_the_last_nodes_stay(
    hanging, monkeypatch
):
    link = hanging()
    grid = SteadyGrid(link.grid())
    assert grid.get_node_ids() == [1, 2, 3]
    monkeypatch.setattr("flwr_asyncdrop.server.steady_grid._NODES_SECONDS", 0.1)
    monkeypatch.setattr("flwr_asyncdrop.server.steady_grid._SECONDS", 0.3)
    link.hanging = ("get_node_ids",)
    threads = threading.active_count()
    for _ in range(3):
        assert grid.get_node_ids() == [1, 2, 3]
    assert threading.active_count() <= threads + 1


def test_every_call_of_a_grid_has_a_policy():
    grid, inner = steady(lambda name, number: GONE if number == 0 else None)
    assert set(CALLS) == {"push_messages", "pull_messages", "get_node_ids"}
    (sent,) = grid.push_messages([message()])
    assert grid.pull_messages([sent]) == []
    inner.sleep(1)
    assert len(grid.pull_messages([sent])) == 1
    assert grid.get_node_ids() == [1, 2, 3]


class Wrapper(FaultyGrid):
    """A grid of somebody's that wraps another one, and says nothing of itself."""

    def __getattribute__(self, name):
        if name == "answers_at_once":
            raise AttributeError(name)
        return super().__getattribute__(name)


class Stuck:
    """Hangs in the calls of a name until it is let go."""

    def __init__(self, name):
        self.name, self.back = name, threading.Event()

    def __call__(self, name, number):
        if name == self.name:
            self.back.wait(60)


@pytest.fixture
def stuck():
    made = []

    def make(name):
        made.append(Stuck(name))
        return made[-1]

    yield make
    for each in made:
        each.back.set()


def test_a_wrapped_grid_that_hangs_in_a_push_is_lost_at_the_patience(stuck):
    grid = SteadyGrid(Wrapper(HandlerGrid(echo), stuck("push_messages")), patience=0.3)
    began = time.monotonic()
    with pytest.raises(GridLostError, match="TimeoutError: it has not returned for"):
        grid.push(message())
    assert time.monotonic() - began < 30


def test_a_wrapped_grid_that_hangs_in_a_pull_delays_nobody(stuck):
    hangs = stuck("pull_messages")
    grid = SteadyGrid(Wrapper(HandlerGrid(echo), hangs))
    message_id = grid.push(message())
    began = time.monotonic()
    assert grid.pulls([message_id]) == []
    assert time.monotonic() - began < 30
    hangs.back.set()
    deadline = time.monotonic() + 60
    while not (pulls := grid.pulls([message_id])):
        assert time.monotonic() < deadline
    (reply,) = pulls[0].replies
    assert not reply.has_error()
