"""The event loop under any schedule of replies, errors, silence and churn.

A machine drives the real loop, session, clocks, mailbox and fleet, one step after the
other, on a grid whose every reply it decides. After each step all books must be right.
"""

import math
from collections import Counter

import torch
from flwr.app import Message, RecordDict
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.fleet import Availability, DeviceProfile
from flwr_asyncdrop.fleet.faults import LATE_POLICIES, FaultPolicy
from flwr_asyncdrop.server.clock import VirtualClock, WallClock
from flwr_asyncdrop.server.evaluations import Evaluations
from flwr_asyncdrop.server.loop import AsyncLoop
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.stopping import StoppingRule
from tests.grids import HandlerGrid
from tests.nightly import examples
from tests.runs import Recorder, Run, answer, failing, plus_one

PROFILES = (
    DeviceProfile(1.0),
    DeviceProfile(2.0, jitter=1.0),
    DeviceProfile(3.0, dropout=0.4),
    DeviceProfile(2.0, jitter=2.0, availability=Availability(20.0, ((0.0, 9.0),))),
)


def answered(message):
    """Answer a probe as a device that says how fast it is."""
    reply = Message(RecordDict(), reply_to=message)
    wire.add_report(reply, wire.DeviceReport(message.metadata.dst_node_id, 1.0, 2.0))
    return reply


REPLIES = {
    "done": plus_one,
    "client-error": failing,
    "shape": lambda message: answer(message, {"w": torch.zeros(9)}),
    "non-finite": lambda message: answer(message, {"w": torch.full((2,), torch.nan)}),
    "num-examples": lambda message: answer(
        message, {"w": torch.zeros(2)}, **{"num-examples": 0}
    ),
}


class DecidedGrid(HandlerGrid):
    """Answers only what it is told to, whenever, and however often."""

    def __init__(self, node_ids):
        super().__init__(lambda message: None, node_ids)
        self.ready: list[Message] = []
        self.strays = False

    def pull_messages(self, message_ids):
        """Return what is ready; also what was not asked for, if there are strays."""
        wanted = set(message_ids)
        here = [
            reply
            for reply in self.ready
            if self.strays or reply.metadata.reply_to_message_id in wanted
        ]
        self.ready = [reply for reply in self.ready if reply not in here]
        return here


class Books(Recorder):
    """Notes which orders left and how they ended, apart from the server's books."""

    def __init__(self, session, queue):
        super().__init__(session.slots, 1 + queue)
        self.fleet = session.dispatcher.fleet
        self.ended_numbers = []
        self.weights_merged = []
        self.steps = []  # the weights that each step of the server merged
        self.bytes_up = 0

    def notice_steps(self, state):
        """Between two calls, the server steps at most once."""
        assert state.version - len(self.steps) in (0, 1)
        if state.version > len(self.steps):
            before = sum(len(step) for step in self.steps)
            self.steps.append(self.weights_merged[before:])

    def on_dispatch(self, state, order):
        super().on_dispatch(state, order)
        self.notice_steps(state)
        assert (
            self.fleet.readiness.quarantined_until.get(order.device, 0.0) <= state.time
        )
        assert order.timing.due > state.time
        assert state.time < order.timing.deadline <= order.timing.gives_up

    def on_update(self, state, merged):
        super().on_update(state, merged)
        self.ended_numbers.append(merged.order.number)
        self.bytes_up += merged.reply.num_bytes
        discount = self.faults.late_weight if merged.late else 1.0
        assert discount > 0
        self.weights_merged.append(discount)
        self.notice_steps(state)

    def on_failure(self, state, order, kind, reason):
        super().on_failure(state, order, kind, reason)
        self.ended_numbers.append(order.number)
        if kind == "late":
            self.bytes_up += order.cost.bytes_up


class LoopMachine(RuleBasedStateMachine):
    """Decides what happens outside; the loop has to cope."""

    @initialize(
        virtual=st.booleans(),
        nodes=st.integers(1, 4),
        slots=st.integers(1, 4),
        size=st.integers(1, 3),
        waits=st.booleans(),
        faults=st.builds(
            FaultPolicy,
            st.sampled_from([0.0, 1.0, 3.0]),
            st.sampled_from(sorted(LATE_POLICIES)),
            st.integers(0, 3),
        ),
        known=st.booleans(),
        probes=st.booleans(),
        queue=st.integers(0, 2),
    )
    def begin(self, virtual, nodes, slots, size, waits, faults, known, probes, queue):
        queue = 0 if virtual or waits else queue
        self.grid = DecidedGrid(range(1, nodes + 1))
        self.run = Run(
            self.grid,
            profiles=PROFILES[:nodes] if virtual else (),
            in_flight=slots,
            patience=90.0,
            build_aggregator=lambda cohort: Buffered(min(size, cohort), waits=waits),
            faults=faults,
            queue_ahead=queue,
        )
        session = self.run.open()
        self.size = session.aggregator.size
        self.waits = waits
        self.state = session.state
        if known:  # Of real devices: those that nobody knows have no deadline.
            for device in range(nodes):
                session.dispatcher.fleet.observe(device, 9.0, compute=1.0)
        self.books = Books(session, queue)
        self.books.faults = faults
        self.clock = self.new_clock()
        stopping = StoppingRule(4, session.updates_per_round, session.slots, 90.0)
        self.loop = AsyncLoop(
            session,
            mailbox=self.run.mailbox,
            clock=self.clock,
            stopping=stopping,
            evaluations=Evaluations((), [self.books], stopping),
            callbacks=[self.books],
            nodes=self.run.nodes,
            probe=CapabilityProbe(
                self.run.mailbox,
                session.fleet,
                self.clock,
                enabled=probes,
                patience=9.0,
                timer=self.grid.timer,
            ),
        )
        self.loop.begin()
        self.failed = False
        self.time = 0.0

    def new_clock(self):
        if self.run.profiles:
            return VirtualClock(self.run.mailbox, self.run.patience)
        return WallClock(self.run.mailbox, self.grid.timer)

    @property
    def goes_on(self):
        return self.loop.continues and not self.failed

    def step_once(self):
        try:
            self.loop.step()
        except RunError:
            assert self.state.version == 0
            self.failed = True
        self.slots_do_not_leak()
        self.every_order_ends_exactly_once()
        self.failures_are_counted_by_reason()
        self.bytes_add_up()
        self.the_model_itself_counts_the_merges()
        self.time_never_goes_back()
        self.the_clock_can_be_rebuilt_from_the_books()

    @precondition(lambda self: self.goes_on)
    @rule(kinds=st.lists(st.sampled_from(["nothing", "done", *REPLIES]), max_size=5))
    def step(self, kinds):
        """Answer the latest messages, also those that have been answered before."""
        for message, kind in zip(reversed(self.grid.pushed), kinds, strict=False):
            if kind != "nothing":
                reply = answered if wire.is_probe(message) else REPLIES[kind]
                self.grid.ready.append(reply(message))
        self.step_once()

    @precondition(lambda self: self.grid.pushed)
    @rule(back=st.integers(0, 8))
    def reply_twice(self, back):
        message = self.grid.pushed[-1 - back % len(self.grid.pushed)]
        reply = answered if wire.is_probe(message) else plus_one
        self.grid.ready += [reply(message), reply(message)]

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds):
        self.grid.now += seconds

    @rule(node=st.integers(1, 6))
    def node_joins(self, node):
        if node not in self.grid.node_ids:
            self.grid.node_ids.append(node)

    @rule(node=st.integers(1, 6))
    def node_leaves(self, node):
        if node in self.grid.node_ids:
            self.grid.node_ids.remove(node)

    @rule(taken=st.booleans())
    def messages_are_taken_or_not(self, taken):
        self.grid.refuse = None if taken else [None]

    @rule(strays=st.booleans())
    def replies_come_unasked_or_not(self, strays):
        self.grid.strays = strays

    def slots_do_not_leak(self):
        state = self.state
        assert len(state.in_flight) <= self.books.slots * self.books.tasks_each
        assert not state.in_flight.keys() & state.late.keys()
        taken = (*state.in_flight.values(), *state.late.values(), *state.waiting)
        tasks = Counter(order.device for order in taken)
        assert max(tasks.values(), default=0) <= self.books.tasks_each

    def every_order_ends_exactly_once(self):
        state, ended = self.state, self.books.ended_numbers
        out = [o.number for o in (*state.in_flight.values(), *state.late.values())]
        assert sorted(ended + out) == list(range(state.dispatched))
        assert state.dispatched == state.updates + sum(state.failures.values()) + len(
            out
        )

    def failures_are_counted_by_reason(self):
        kinds = Counter(kind for _, kind, _ in self.books.failures)
        assert kinds == self.state.failures

    def bytes_add_up(self):
        sent = sum(order.cost.bytes_down for order in self.books.orders)
        assert self.state.bytes_down == sent
        assert self.state.bytes_up == self.books.bytes_up

    def the_model_itself_counts_the_merges(self):
        """Every step adds the mean weight of its updates: K, if nobody is missed.

        Fewer step only where devices wait for each other: without those that failed, or
        without those of a real fleet that may still join.
        """
        state, books = self.state, self.books
        books.notice_steps(state)
        assert len(books.weights_merged) == state.updates
        sizes = [len(step) for step in books.steps]
        assert 0 <= state.updates - sum(sizes) < self.size
        may_join = not self.run.profiles and self.size < books.slots
        if self.waits and (state.failures or may_join):
            assert all(1 <= size <= self.size for size in sizes)
        else:
            assert set(sizes) <= {self.size}
        moved = sum(sum(step) / len(step) for step in books.steps)
        assert torch.allclose(state.arrays["w"], torch.full((2,), float(moved)))

    def time_never_goes_back(self):
        assert self.time <= self.state.time <= self.clock.now < math.inf
        self.time = self.state.time

    def the_clock_can_be_rebuilt_from_the_books(self):
        rebuilt = self.new_clock()
        rebuilt.resume(self.state)
        assert sorted(rebuilt._moments) == sorted(self.clock._moments)

    def teardown(self):
        """When all is well again, the run comes to its end."""
        if not hasattr(self, "loop"):
            return
        self.grid.refuse, self.grid.strays = None, False
        self.grid.handler = lambda message: (
            answered(message) if wire.is_probe(message) else plus_one(message)
        )
        self.grid.node_ids = list(range(1, 5))
        self.grid.ready = []
        self.grid.pull_messages = super(DecidedGrid, self.grid).pull_messages
        for _ in range(400):
            if not self.goes_on:
                break
            self.step_once()
        assert not self.goes_on
        if not self.failed and not self.state.ended:
            assert self.state.updates == self.loop._stopping.num_updates


LoopMachine.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None
)
test_any_schedule = LoopMachine.TestCase
