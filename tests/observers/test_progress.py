import logging
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
from flwr.app import MetricRecord, RecordDict

from flwr_asyncdrop.fleet.fleet import Fleet
from flwr_asyncdrop.fleet.profiles import DeviceProfile
from flwr_asyncdrop.observers.progress import ProgressLog
from flwr_asyncdrop.server.callbacks import Evaluation, Merged
from flwr_asyncdrop.server.order import Timing
from flwr_asyncdrop.server.state import RunState
from flwr_asyncdrop.wire import Reply
from tests.observers.orders import order_of

ORDER = order_of(rank=3)


class Run:
    """A run in which the test decides what happens and what the time is."""

    def __init__(self, num_updates=100, seconds=2.0, max_seconds=math.inf):
        self.now = 1000.0
        self.state = RunState.start_from({}, seed=0)
        self.progress = ProgressLog(
            num_updates, max_seconds, seconds=seconds, timer=lambda: self.now
        )
        self.fleet = Fleet(num_ranks=8)
        self.progress.on_start(self.state)

    def update(self, staleness=0, rank=0, queued=0):
        self.state.updates += 1
        order, reply = replace(ORDER, rank=rank), Reply({}, 1, RecordDict(), 0)
        merged = Merged(order, reply, staleness, 1, queued=queued)
        self.progress.on_update(self.state, merged)

    def evaluate(self, source, **metrics):
        record = MetricRecord(metrics) if metrics else None
        evaluation = Evaluation(source, 1, self.state.updates, 0.0, record)
        self.progress.on_evaluation(self.state, evaluation)

    def fail(self, kind, reason="it broke"):
        self.state.failures[kind] = self.state.failures.get(kind, 0) + 1
        self.progress.on_failure(self.state, ORDER, kind, reason)

    def end(self):
        self.progress.on_end(self.state)


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="flwr")

    def read(level=logging.INFO):
        return [r.getMessage() for r in caplog.records if r.levelno == level]

    return read


@pytest.fixture
def firsts(lines):
    return lambda: [line for line in lines() if not line.startswith(" ")]


def test_who_waits_for_a_step_is_counted_as_slots_are_filled(firsts):
    run = Run(num_updates=480)
    run.state.in_flight, run.state.waiting = {"a": ORDER}, [ORDER, ORDER]
    run.progress.on_dispatch(run.state, ORDER)
    run.state.waiting = [*run.state.waiting, ORDER]
    run.update()
    assert "1 in flight, 2 waiting" in firsts()[-1]
    run.state.waiting = []
    run.progress.on_dispatch(run.state, ORDER)
    run.now += 5
    run.update()
    assert "waiting" not in firsts()[-1]


def test_lines_say_it_all(lines):
    run = Run(num_updates=480)
    run.progress.on_fleet(run.fleet)
    run.fleet.refresh(range(24))
    run.fleet.readiness.quarantined_until = {3: 600.0, 4: 300.0}
    run.fleet.readiness.probed_until = {5: 512.0, 6: 520.0}
    run.fleet.readiness.too_small = {7}
    run.state.updates = 126
    run.evaluate("server", loss=0.3, accuracy=0.9126)
    run.now += 0.1
    run.update(staleness=4, rank=3, queued=2)
    run.state.time = 511.6
    run.state.bytes_down, run.state.bytes_up = 12_345_678, 12_100_000
    run.state.in_flight = dict.fromkeys("abcdefgh", ORDER)
    run.progress.on_dispatch(run.state, ORDER)
    run.state.in_flight = dict.fromkeys("abcdefg", ORDER)
    run.state.failures = {"no-reply": 1, "shape": 1}
    run.state.late = {"m": ORDER}
    run.now += 1.9
    run.update(staleness=7, rank=6)
    assert lines()[-2:] == [
        "update 128/480 | t 512 s | accuracy 0.913 | "
        "24 devices, 8 in flight, 1 late, 1 in quarantine, 2 probed, 1 too small | "
        "5 min 52 s left",
        "    1.0 updates/s | staleness 5.5 (1.0 queued) | 12.3 MB down, 12.1 MB up | "
        "by speed group 0 1 0 1 | lost: 1 no-reply, 1 shape",
    ]


def test_lines_leave_out_what_is_not_known(lines):
    run = Run()
    run.end()
    assert lines() == [
        "update   0/100 | t 0 s | 0 in flight",
        "    0.00 kB down, 0.00 kB up",
    ]


def test_lines_fit_a_terminal_of_a_hundred_columns(lines):
    """Those of a hundred devices on their second day do; Flower adds 12 to them."""
    run = Run(num_updates=10_000)
    run.progress.on_fleet(run.fleet)
    run.fleet.refresh(range(100))
    run.evaluate("server", accuracy=0.5)
    run.state.updates = 9_998
    run.state.time = 90_000.0
    run.state.bytes_down = run.state.bytes_up = 987_000_000_000
    run.progress._by_group.update(dict.fromkeys(range(4), 2_500))
    run.state.late = {"m": ORDER}
    run.now += 2
    run.update(staleness=100)
    assert [len(line) <= 100 for line in lines()[-2:]] == [True, True]


@pytest.mark.parametrize(
    ("updates", "seconds", "says", "left"),
    [
        (410, 10, "41", "14 s left"),
        (25, 10, "2.5", "6 min 30 s left"),
        (3, 60, "0.05", "5 h 32 min left"),
        (7, 3600, "0.0019", "141 h 51 min left"),
    ],
)
def test_a_slow_fleet_has_a_rate_too(updates, seconds, says, left, lines):
    run = Run(num_updates=1000, seconds=1e9)
    for _ in range(updates):
        run.update()
    run.now += seconds
    run.end()
    first, second = lines()[-2:]
    assert first.endswith(f" | {left}")
    assert second.startswith(f"    {says} updates/s | ")


def test_the_first_update_does_not_say_what_is_left(firsts):
    """An engine that had to start first makes of 13 seconds 20 minutes."""
    run = Run(num_updates=96)
    run.now += 13.0
    run.update()
    assert firsts() == ["update  1/96 | t 0 s | 0 in flight"]
    run.now += 2.0
    run.update()
    assert firsts()[-1].endswith(" left")


def test_what_is_left_is_what_ends_the_run_first(firsts):
    run = Run(num_updates=10_000, max_seconds=100.0)
    run.now += 3.0
    run.update()
    run.state.time = 20.0
    run.now += 2.0
    run.update()
    # 20 of 100 seconds on its clock took 5 real ones.
    assert firsts()[-1].endswith(" | 20 s left")
    run.state.time = 100.0
    run.end()
    assert firsts()[-1].endswith("in flight")


def test_lines_are_some_seconds_apart(firsts):
    run = Run(seconds=2.0)
    counts = []
    for _ in range(60):
        run.update()
        counts.append(len(firsts()))
        run.now += 0.25
    assert counts == [1 + i // 8 for i in range(60)]


def test_evaluation_brings_a_line_when_it_is_time(firsts):
    run = Run(seconds=2.0)
    run.evaluate("server", accuracy=0.25)
    run.now += 1.0
    run.evaluate("server", accuracy=0.5)
    assert len(firsts()) == 1
    run.now += 1.0
    run.evaluate("server", accuracy=0.75)
    assert ["accuracy 0.250" in line for line in firsts()] == [True, False]
    assert "accuracy 0.750" in firsts()[-1]


def test_evaluation_without_metrics_changes_nothing(firsts):
    run = Run()
    run.evaluate("server", accuracy=0.5)
    run.evaluate("server")
    run.end()
    assert "accuracy 0.500" in firsts()[-1]


@pytest.mark.parametrize("first", ["server", "clients"])
def test_server_evaluation_goes_before_the_clients(firsts, first):
    run = Run()
    values = {"server": 0.25, "clients": 0.75}
    second = "clients" if first == "server" else "server"
    run.evaluate(first, accuracy=values[first])
    run.evaluate(second, accuracy=values[second])
    run.end()
    assert "accuracy 0.250" in firsts()[-1]


def test_clients_evaluation_shows_without_a_server_one(firsts):
    run = Run()
    run.evaluate("clients", accuracy=0.5)
    run.evaluate("clients", accuracy=0.75)
    run.end()
    assert "accuracy 0.750" in firsts()[-1]


def test_last_line_comes_whatever_the_time(firsts):
    run = Run(seconds=1e9)
    run.update()
    run.update()
    run.end()
    assert [line[:12] for line in firsts()] == ["update   1/1", "update   2/1"]


def test_failures_are_told_five_times_a_kind_then_counted(lines):
    run = Run()
    for number in range(9):
        run.fail("no-reply", f"no reply {number}")
    run.fail("shape", "array 'w' came back narrower")
    run.end()
    told = lines(logging.WARNING)
    assert told[:4] == [
        f"device 17 (rank 3) failed, its task is lost: no reply {number}"
        for number in range(4)
    ]
    assert told[4].endswith("no reply 4 (from here on 'no-reply' is only counted)")
    assert told[5].endswith("array 'w' came back narrower")
    assert told[6:] == ["tasks lost: 9 no-reply, 1 shape"]
    assert lines()[-1].endswith("| lost: 9 no-reply, 1 shape")


@pytest.mark.parametrize(
    ("profiles", "node"),
    [(None, f", node {ORDER.node_id}"), ([DeviceProfile(1.0)] * 8, "")],
    ids=["real", "simulated"],
)
def test_a_failure_names_the_node_of_a_real_device(lines, profiles, node):
    run = Run()
    run.progress.on_fleet(Fleet(num_ranks=8, profiles=profiles))
    run.fail("shape")
    assert lines(logging.WARNING)[0].startswith(f"device 17 (rank 3{node}) failed")


def test_a_real_fleet_that_is_silent_is_told_of_ever_less_often(firsts):
    run = Run()
    run.progress.on_fleet(run.fleet)
    later = replace(ORDER, timing=Timing(dispatched_at=7.0))
    run.state.in_flight = {"b": later, "a": ORDER}

    def told(seconds):
        run.now += seconds
        run.state.time += seconds
        run.progress.on_pause(run.state)
        return firsts()[1:]

    run.update()
    assert told(59) == []
    out, who = "2 tasks are out, the longest for", "device 17, node 170"
    assert told(1) == [f"nothing has come for 1 min: {out} 1 min, {who}"]
    assert len(told(59)) == 1
    assert told(1)[1:] == [f"nothing has come for 2 min: {out} 2 min, {who}"]
    run.fail("shape")
    assert len(told(59)) == 2
    assert len(told(1)) == 3
    run.state.in_flight = {"c": replace(ORDER, timing=Timing(run.state.time))}
    assert len(told(119)) == 3, "it was sent two minutes ago, after answers to probes"
    assert len(told(1)) == 4


def test_replies_that_came_twice_are_told_at_the_end(lines):
    run = Run()
    run.state.duplicates = 3
    run.end()
    assert lines(logging.WARNING) == ["3 replies came twice, merged once"]


def test_failures_before_a_resume_are_counted_but_not_told(lines):
    run = Run()
    run.state = RunState.start_from({}, seed=0)
    run.state.failures = {"shape": 7}
    run.progress.on_start(run.state)
    run.fail("no-reply")
    assert len(lines(logging.WARNING)) == 1
    run.end()
    assert lines()[-1].endswith("| lost: 7 shape, 1 no-reply")


def test_lines_reach_flowers_own_handler(monkeypatch):
    from flwr.common.logger import console_handler

    written = []
    stream = SimpleNamespace(write=written.append, flush=lambda: None)
    monkeypatch.setattr(console_handler, "stream", stream)
    Run().end()
    assert "update   0/100" in "".join(written)
