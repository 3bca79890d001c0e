"""Real devices are asked what they can do before their first task."""

import time

import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.clientapp import mod as mods

from flwr_asyncdrop import wire
from flwr_asyncdrop.aggregation import Buffered
from flwr_asyncdrop.exceptions import CapacityError, RunError
from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.server.assignment import Assignment
from flwr_asyncdrop.server.mailbox import Mailbox
from flwr_asyncdrop.server.probe import CapabilityProbe
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.submodel import plan_submodels
from tests.grids import HandlerGrid
from tests.runs import Run, failing, mlp, plus_one


def device(reports, otherwise=plus_one):
    """Answer a probe with what `reports` has for the node; else train."""

    def handle(message):
        if not wire.is_probe(message):
            return otherwise(message)
        reply = Message(RecordDict(), reply_to=message)
        report = reports[message.metadata.dst_node_id]
        if report is None:
            return failing(message)
        wire.add_report(reply, report)
        return reply

    return handle


def tasks(grid):
    return [m for m in grid.pushed if not wire.is_probe(m)]


def test_the_first_tasks_go_by_what_the_devices_answer():
    reports = {node: wire.DeviceReport(seconds) for node, seconds in ((1, 9), (2, 3))}
    grid = HandlerGrid(device(reports), node_ids=reports)
    run = Run(grid, in_flight=2, probes=True).go()
    assert [m.metadata.dst_node_id for m in grid.pushed[:2]] == [1, 2]
    assert all(wire.is_probe(message) for message in grid.pushed[:2])
    first = run.recorder.orders[:2]
    assert [(order.node_id, order.rank) for order in first] == [(2, 0), (1, 1)]
    assert run.state.failures == {}


def test_a_device_that_does_not_know_probes_trains_all_the_same(caplog):
    caplog.set_level("INFO")
    reports = {1: None, 2: wire.DeviceReport(3.0)}
    grid = HandlerGrid(device(reports), node_ids=reports)
    run = Run(grid, in_flight=2, probes=True).go()
    assert {order.node_id for order in run.recorder.orders} == {1, 2}
    assert run.state.failures == {}
    (line,) = [m for m in caplog.messages if "does not say" in m]
    assert line == "device 0 does not say what it can do: it raised"


def test_a_mod_that_looks_for_arrays_in_a_probe_is_told_where_to_stand(caplog):
    """It answers in the place of the CapacityMod behind it."""
    caplog.set_level("INFO")

    def handle(message):
        if wire.is_probe(message):
            return mods.fixedclipping_mod(message, None, None)
        return plus_one(message)

    run = Run(HandlerGrid(handle, node_ids=[1]), in_flight=1, probes=True).go()
    assert run.state.failures == {}
    (line,) = [m for m in caplog.messages if "does not say" in m]
    assert line.endswith("; CapacityMod goes first, ClientApp(mods=[CapacityMod()])")
    assert "fixedclipping_mod" in line


def test_a_device_that_never_answers_is_waited_for_a_minute():
    silent = device({2: wire.DeviceReport(3.0)})
    grid = HandlerGrid(
        lambda m: (
            None if wire.is_probe(m) and m.metadata.dst_node_id == 1 else silent(m)
        ),
        node_ids=[1, 2],
        delay=lambda m: 0.0 if wire.is_probe(m) else 30.0,
    )
    run = Run(grid, in_flight=2, probes=True, rounds=4).go()
    first = next(order for order in run.recorder.orders if order.node_id == 1)
    assert 60 <= first.timing.dispatched_at < 66


class TestResumed:
    """A run goes on at the second at which it stopped, and so do its questions."""

    def saved(self, **options):
        grid = HandlerGrid(plus_one, node_ids=[1, 2], delay=lambda m: 30.0)
        saved = Run(grid, **options).go().run.state_dict()
        assert saved["state"]["time"] > 60
        return saved

    def test_a_device_that_never_answers_is_waited_for_a_minute(self):
        saved = self.saved(in_flight=2, rounds=4)
        grid = HandlerGrid(
            lambda m: None if wire.is_probe(m) else plus_one(m),
            node_ids=[1, 2],
            delay=lambda m: 30.0,
        )
        run = Run(grid, in_flight=2, probes=True, rounds=6, saved=saved).go()
        waited = run.recorder.orders[0].timing.dispatched_at - saved["state"]["time"]
        assert 60 <= waited < 66

    def test_links_are_measured_against_the_answer(self):
        arrays, bytes_a_second = {"w": torch.zeros(50_000)}, 1e5
        saved = self.saved(in_flight=2, rounds=4, arrays=arrays)

        def seconds_each_way(message):
            return wire.array_bytes(message.content["arrays"]) / bytes_a_second

        def handle(message):
            if wire.is_probe(message):
                reply, way = Message(RecordDict(), reply_to=message), 0.0
            else:
                reply, way = plus_one(message), seconds_each_way(message)
            there = grid.now + way
            wire.add_report(reply, wire.DeviceReport(1.0, there, there + 1.0))
            return reply

        grid = HandlerGrid(
            handle,
            node_ids=[1, 2],
            delay=lambda m: 1.0 + (0 if wire.is_probe(m) else 2 * seconds_each_way(m)),
        )
        grid.now = 1e6  # the clock of the devices, too
        options = {"in_flight": 2, "probes": True, "arrays": arrays}
        run = Run(grid, rounds=8, saved=saved, **options).go()
        link = run.run.fleet.devices.link(0, 1.0)
        assert link.bytes_per_second_down == pytest.approx(bytes_a_second, rel=0.1)
        assert link.bytes_per_second_up == pytest.approx(bytes_a_second, rel=0.1)


def test_a_machine_that_is_slow_for_a_moment_hears_the_answers_all_the_same(
    monkeypatch,
):
    """The runs here have no clock but their grid's: real seconds change nothing."""
    poll = Mailbox.poll

    def slowly(mailbox, ids):
        time.sleep(0.02)
        return poll(mailbox, ids)

    monkeypatch.setattr(Mailbox, "poll", slowly)
    reports = {node: wire.DeviceReport(node) for node in (1, 2)}
    grid = HandlerGrid(device(reports), node_ids=reports, delay=lambda m: 1.0)
    run = Run(grid, in_flight=2, rounds=1, probes=True).go()
    assert [order.timing.dispatched_at for order in run.recorder.orders[:2]] == [1, 1]


class SlowMailbox:
    """A mailbox of devices whose answers come as they are told to.

    On its own clock a push takes half a second, and a look for answers one.
    """

    push_due_in = now = 0.0

    def __init__(self):
        self.looks = 0
        self.asked = {}
        self.answer = []

    def push(self, message):
        self.now += 0.5
        self.asked[f"probe {len(self.asked)}"] = message
        return f"probe {len(self.asked) - 1}"

    def poll(self, ids):
        self.now += 1.0
        self.looks += 1
        replies = []
        for name in self.answer:
            reply = Message(RecordDict(), reply_to=self.asked[name])
            reply.metadata.__dict__["_reply_to_message_id"] = name
            wire.add_report(reply, wire.DeviceReport(1.0, self.now, self.now))
            replies.append(reply)
        self.answer = []
        return replies


class TestSlowSuperLink:
    @pytest.fixture
    def mailbox(self):
        return SlowMailbox()

    @pytest.fixture
    def fleet(self):
        return Fleet(num_ranks=1)

    @pytest.fixture
    def probe(self, mailbox, fleet):
        return CapabilityProbe(mailbox, fleet, mailbox, timer=lambda: mailbox.now)

    def join(self, probe, fleet, node_ids):
        fleet.refresh(node_ids)
        probe.note_joined()

    def test_devices_that_never_answer_take_a_twentieth_of_the_time(
        self, probe, fleet, mailbox
    ):
        self.join(probe, fleet, [7])
        probe.ask()
        looks = []
        for now in (100.0, 119.9, 120.0, 120.5):
            mailbox.now = now
            probe.take_answers()
            looks.append(mailbox.looks)
        assert looks == [1, 1, 2, 2]

    def test_a_look_that_has_brought_answers_delays_no_other(
        self, probe, fleet, mailbox
    ):
        self.join(probe, fleet, [7, 8])
        probe.ask()
        mailbox.answer = ["probe 0"]
        probe.take_answers()
        mailbox.answer = ["probe 1"]
        probe.take_answers()
        assert mailbox.looks == 2
        assert fleet.readiness.probing(mailbox.now) == 0

    def test_each_is_timed_from_its_own_question_on(self, probe, fleet, mailbox):
        """Else the last of many seems to have a slow link, and tasks none at all."""
        self.join(probe, fleet, [7, 8, 9])
        probe.ask()
        mailbox.answer = ["probe 0", "probe 1", "probe 2"]
        probe.take_answers()
        known = fleet.devices.capacities
        # Received at 2.5 s; asked at 0, 0.5 and 1 s.
        assert [known[n].down.least_seconds for n in range(3)] == [2.5, 2.0, 1.5]

    def test_many_are_asked_for_two_seconds_at_a_time_and_wait_meanwhile(
        self, probe, fleet, mailbox, caplog
    ):
        caplog.set_level("INFO")
        self.join(probe, fleet, range(100, 140))
        assert "40 devices are asked what they can do" in caplog.text
        assert fleet.readiness.idle((), mailbox.now).size == 0
        asked = []
        while probe.next_question <= mailbox.now:
            probe.ask()
            asked.append(len(mailbox.asked))
        assert asked == [*range(4, 41, 4)]
        assert probe.next_question == float("inf")
        assert len({m.metadata.dst_node_id for m in mailbox.asked.values()}) == 40
        # The last was asked at 19.5 s, and may take a minute.
        assert fleet.readiness.idle((), 79.4).size == 39
        assert fleet.readiness.idle((), 79.5).size == 40

    def test_one_that_has_left_is_asked_when_it_is_back(self, probe, fleet, mailbox):
        self.join(probe, fleet, range(100, 120))
        probe.ask()
        self.join(probe, fleet, range(100, 119))
        while probe.next_question <= mailbox.now:
            probe.ask()
        assert len(mailbox.asked) == 19
        self.join(probe, fleet, range(100, 120))
        probe.ask()
        assert [m.metadata.dst_node_id for m in mailbox.asked.values()][19:] == [119]

    def test_nobody_is_asked_while_pushes_fail(self, probe, fleet, mailbox):
        self.join(probe, fleet, [7])
        mailbox.push_due_in = 3.0
        probe.ask()
        assert mailbox.asked == {}
        assert probe.next_question == 3.0


class TestLargeFleet:
    """Sixty devices, and a second for each message."""

    NODES = range(1, 61)

    @pytest.fixture
    def grid(self):
        reports = {node: wire.DeviceReport(1.0) for node in self.NODES}
        handler = device(reports)

        def slow(message):
            grid.now += 1.0
            return handler(message)

        grid = HandlerGrid(slow, node_ids=self.NODES)
        return grid

    def test_the_first_tasks_leave_before_all_are_asked(self, grid):
        run = Run(grid, in_flight=2, rounds=1, probes=True).go()
        assert run.recorder.orders[0].timing.dispatched_at == 2

    def test_the_others_are_asked_while_all_slots_are_full(self, grid):
        grid.delay = lambda m: 0.0 if wire.is_probe(m) else 90.0
        Run(grid, in_flight=2, rounds=1, probes=True).go()
        probes = len(grid.pushed) - len(tasks(grid))
        assert probes == 60


def test_one_that_joins_is_probed_too():
    reports = {node: wire.DeviceReport(float(node)) for node in (1, 2, 3)}
    grid = HandlerGrid(device(reports), node_ids=[1], delay=lambda m: 2.0)
    handler = grid.handler

    def grow(message):
        if len(grid.pushed) == 4:
            grid.node_ids.append(3)
        return handler(message)

    grid.handler = grow
    run = Run(grid, in_flight=2, probes=True, rounds=12).go()
    probed = [m.metadata.dst_node_id for m in grid.pushed if wire.is_probe(m)]
    assert probed == [1, 3]
    assert {order.node_id for order in run.recorder.orders} == {1, 3}


def test_nobody_is_probed_unless_it_is_asked_for_nor_if_simulated():
    for options in ({}, {"probes": True, "seconds": (1.0, 2.0, 3.0)}):
        grid = HandlerGrid(plus_one)
        Run(grid, **options).go()
        assert len(tasks(grid)) == len(grid.pushed)


def test_reports_with_tasks_change_the_ranks():
    """Device 0 throttles: its tasks take ever longer, though it replies as fast."""
    seconds = {1: 1.0, 2: 3.0}

    def handle(message):
        reply = plus_one(message)
        node = message.metadata.dst_node_id
        wire.add_report(reply, wire.DeviceReport(seconds[node]))
        if node == 1:
            seconds[1] *= 2
        return reply

    grid = HandlerGrid(handle, node_ids=[1, 2], delay=lambda m: 1.0)
    run = Run(grid, in_flight=2, rounds=8).go()
    ranks = [order.rank for order in run.recorder.orders if order.device == 0]
    assert ranks[1] == 0
    assert ranks[-1] == 1


class TestMemory:
    STATE = RunState.start_from(mlp().state_dict(), seed=3)
    FULL = sum(tensor.nbytes for tensor in STATE.arrays.values())

    def submodels(self):
        plan = plan_submodels(mlp(), torch.zeros(1, 4))
        return Assignment(plan, RandomMask(0.25))

    def test_a_submodel_is_as_small_as_the_device_needs(self):
        part = self.submodels().part(self.STATE, 0, 2, most_bytes=self.FULL / 3)
        size = sum(tensor.nbytes for tensor in part.arrays.values())
        assert self.FULL / 5 < size <= self.FULL / 3
        assert {n: tuple(t.shape) for n, t in part.arrays.items()} == part.shapes

    def test_one_that_fits_is_what_it_was_without_a_bound(self):
        free = self.submodels().part(self.STATE, 0, 2)
        bounded = self.submodels().part(self.STATE, 0, 2, most_bytes=self.FULL)
        assert free.shapes == bounded.shapes
        assert all(torch.equal(free.arrays[n], bounded.arrays[n]) for n in free.arrays)

    @pytest.mark.parametrize("masked", [False, True])
    def test_full_size_models_do_not_get_smaller(self, masked):
        plan = plan_submodels(mlp(), torch.zeros(1, 4))
        masks = RandomMask(0.5) if masked else None
        whole = Assignment(plan, masks, masked=masked)
        whole.part(self.STATE, 0, 2, most_bytes=self.FULL)
        with pytest.raises(CapacityError, match="choose an algorithm with submodels"):
            whole.part(self.STATE, 0, 2, most_bytes=self.FULL - 1)

    def test_a_device_without_the_memory_gets_no_tasks(self, caplog):
        arrays = {"w": torch.zeros(2)}  # 8 bytes, and five times that to train
        reports = {1: wire.DeviceReport(1.0, memory=39), 2: wire.DeviceReport(1.0)}
        grid = HandlerGrid(device(reports), node_ids=reports)
        run = Run(grid, arrays=arrays, in_flight=2, probes=True).go()
        assert {order.node_id for order in run.recorder.orders} == {2}
        assert run.run.fleet.readiness.too_small == {0}
        assert run.run.fleet.readiness.quarantined(run.state.time) == 0
        assert caplog.text.count("device 0 gets no tasks: the full model") == 1

    def test_those_who_wait_for_each_other_go_on_without_it(self):
        reports = {node: wire.DeviceReport(1.0) for node in (1, 2, 3)}
        reports[2] = wire.DeviceReport(1.0, memory=39)
        grid = HandlerGrid(device(reports), node_ids=reports, delay=lambda m: 1.0)
        run = Run(
            grid,
            in_flight=3,
            rounds=2,
            patience=30.0,
            probes=True,
            build_aggregator=lambda cohort: Buffered(cohort, waits=True),
        ).go()
        assert (run.state.updates, run.state.version, run.state.ended) == (6, 3, "")
        assert grid.now < 30

    def test_a_run_without_any_device_that_can_ends(self):
        reports = {1: wire.DeviceReport(1.0, memory=39)}
        grid = HandlerGrid(device(reports), node_ids=reports)
        with pytest.raises(RunError, match="no device was there"):
            Run(grid, in_flight=1, probes=True).go()
