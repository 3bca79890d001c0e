"""Workers and fork servers that are stopped, killed or hang: nobody waits for ever."""

import logging
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from flwr_asyncdrop.simulation import LocalGrid, worker_pool
from flwr_asyncdrop.simulation.fork_server import server_pid
from flwr_asyncdrop.simulation.liveness import LivenessLimits, Watch, look
from flwr_asyncdrop.simulation.worker_pool import WorkerPool
from tests.nightly import nightly

APP = "grid_apps:app"
QUICK = LivenessLimits(stopped=0.3, idle=1.0, interval=0.05, exit=1.0)
PATIENT = LivenessLimits(stopped=60.0, interval=0.05)
SOON = 300.0


def task(node, action, number=0.0):
    content = RecordDict({"task": ConfigRecord({"number": number})})
    return Message(content, node, f"train.{action}")


def grid_of(workers, limits=QUICK):
    return LocalGrid(num_nodes=4, runner=WorkerPool(APP, workers, 1, limits))


def ask(grid, node, action="describe", number=0.0):
    (reply,) = grid.send_and_receive([task(node, action, number)], timeout=SOON)
    return reply


def finish(grid, ids):
    replies, end = [], time.monotonic() + SOON
    while ids and time.monotonic() < end:
        grid.wait_any(ids, 1.0)
        replies += grid.pull_messages(ids)
        done = {reply.metadata.reply_to_message_id for reply in replies}
        ids = [message_id for message_id in ids if message_id not in done]
    return replies


def pid_of(grid):
    return ask(grid, 1000).content["facts"]["pid"]


@pytest.fixture(autouse=True)
def _messages(caplog):
    caplog.set_level(logging.WARNING)


def test_a_stopped_worker_is_named_and_replaced_and_its_task_is_run_again(caplog):
    with grid_of(1) as grid:
        pid = pid_of(grid)
        ids = grid.push_messages([task(1001, "tally", 7), task(1002, "sleep", 0.2)])
        os.kill(pid, signal.SIGSTOP)
        replies = finish(grid, ids)
        assert [reply.has_content() for reply in replies] == [True, True]
        assert pid_of(grid) != pid
        # It was done once, as far as the node's state goes.
        seen = ask(grid, 1001, "tally", 8).content["seen"]["numbers"]
        assert seen == [7, 8]
    assert f"process {pid}) has been stopped (SIGSTOP)" in caplog.text
    assert look(pid) is None


def test_an_idle_worker_that_is_stopped_is_replaced_with_two_workers(caplog):
    with grid_of(2) as grid:
        pid = pid_of(grid)
        os.kill(pid, signal.SIGSTOP)
        replies = grid.send_and_receive(
            [task(node, "sleep", 0.5) for node in grid.get_node_ids()], timeout=SOON
        )
        assert [reply.has_content() for reply in replies] == [True] * 4
    assert f"process {pid})" in caplog.text


def test_a_worker_that_computes_nothing_is_replaced_and_its_task_fails_in_the_end(
    caplog,
):
    with grid_of(1) as grid:
        reply = ask(grid, 1000, "sleep", 3600)
        assert reply.error.code == ErrorCode.CLIENT_APP_CRASHED
        assert re.search(r"has computed nothing for \d+ s", reply.error.reason)
        assert ask(grid, 1000).has_content()
    assert caplog.text.count("it is replaced") == 2, "it is run again once"


def test_a_worker_that_answers_begins_anew(monkeypatch):
    # Its tasks may only wait, and so compute too little to be seen.
    looks = []

    class CountedWatch(Watch):
        def __init__(self, limits):
            self.looks = 0

        def verdict(self, process, *, has_work):
            self.looks += has_work
            looks.append(self.looks)
            return ""

    monkeypatch.setattr(worker_pool, "Watch", CountedWatch)
    with grid_of(1, LivenessLimits(interval=0.01)) as grid:
        looks.clear()
        for _ in range(4):
            ask(grid, 1000, "sleep", 0.05)
    assert looks.count(1) >= 2


def test_a_worker_that_was_stopped_for_a_moment_goes_on(caplog):
    with grid_of(1, PATIENT) as grid:
        pid = pid_of(grid)
        os.kill(pid, signal.SIGSTOP)
        ids = grid.push_messages([task(1000, "describe")])
        assert not grid.wait_any(ids, 0.1)
        os.kill(pid, signal.SIGCONT)
        assert grid.wait_any(ids, SOON)
        assert grid.pull_messages(ids)[0].content["facts"]["pid"] == pid
    assert caplog.text == ""


@pytest.mark.parametrize("number", [signal.SIGSTOP, nightly(signal.SIGKILL)])
def test_a_fork_server_that_is_stuck_or_gone_costs_no_task(number, caplog):
    with grid_of(1) as grid:
        pid, server = pid_of(grid), server_pid()
        ids = grid.push_messages([task(1001, "tally", 1), task(1002, "sleep", 0.3)])
        os.kill(server, number)
        os.kill(pid, signal.SIGSTOP)  # so that another worker has to be started
        replies = finish(grid, ids)
        assert [reply.has_content() for reply in replies] == [True, True]
        assert server_pid() not in (None, server)
    assert f"process {pid})" in caplog.text
    assert look(pid) is None
    assert multiprocessing.active_children() == []


def test_a_fork_server_that_is_stopped_before_a_grid_is_made_is_replaced(caplog):
    grid_of(1).close()
    server = server_pid()
    os.kill(server, signal.SIGSTOP)
    with grid_of(1) as grid:
        assert ask(grid, 1000).has_content()
    assert f"The fork server (process {server}) has been stopped" in caplog.text


def test_close_does_not_wait_for_what_is_stopped():
    grid = grid_of(2)
    grid.push_messages([task(1000, "sleep", 60)])
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGSTOP)
    os.kill(server_pid(), signal.SIGSTOP)
    start = time.monotonic()
    grid.close()
    assert time.monotonic() - start < 30
    assert multiprocessing.active_children() == []


def test_close_gives_all_workers_the_same_seconds_to_end():
    grid = grid_of(4, LivenessLimits(exit=0.7))
    for process in multiprocessing.active_children():
        os.kill(process.pid, signal.SIGSTOP)
    start = time.monotonic()
    grid.close()
    assert time.monotonic() - start < 4 * 0.7
    assert multiprocessing.active_children() == []


COMPUTES = "while True: pass"
LETS_COMPUTE = f"""\
import subprocess, sys
subprocess.run([sys.executable, "-c", {COMPUTES!r}])
"""


def seconds_of(process):
    """The seconds for which a process has computed."""
    return sum(process.cpu_times()[:2])


class TestWatch:
    """One look after the other, at a process that does nothing, or computes."""

    @pytest.fixture
    def sleeper(self):
        command = [sys.executable, "-c", "import time; time.sleep(60)"]
        with subprocess.Popen(command) as process:
            while (sight := look(process.pid)) is None or sight.state != "S":
                time.sleep(0.02)
            yield process
            process.kill()

    def test_one_without_work_is_well(self, sleeper):
        clock = iter(range(0, 10_000, 1000))
        watch = Watch(QUICK, lambda: next(clock))
        said = [watch.verdict(sleeper.pid, has_work=False) for _ in range(3)]
        assert said == ["", "", ""]

    def test_a_pause_of_the_machine_between_two_looks_counts_for_nothing(self, sleeper):
        clock = iter([0, 10_000, 10_000.5, 10_003])
        watch = Watch(QUICK, lambda: next(clock))
        said = [watch.verdict(sleeper.pid, has_work=True) for _ in range(4)]
        assert said[:3] == ["", "", ""]
        assert said[3] == "has had a task and has computed nothing for 1 s"

    def test_nor_does_one_after_a_look_at_which_it_happened_to_wait(self, sleeper):
        clock = iter([0, 0.1, 10_000, 10_000.1])
        watch = Watch(QUICK, lambda: next(clock))
        said = [watch.verdict(sleeper.pid, has_work=True) for _ in range(4)]
        assert said == [""] * 4

    @pytest.mark.parametrize("code", [COMPUTES, LETS_COMPUTE], ids=["here", "below"])
    def test_a_long_task_that_computes_is_left_alone(self, code):
        clock = iter(range(0, 10_000, 1000))
        watch = Watch(QUICK, lambda: next(clock))
        said = []
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            family = [psutil.Process(process.pid)]
            while code == LETS_COMPUTE and len(family) == 1:
                family += family[0].children()
            try:
                for _ in range(6):
                    said.append(watch.verdict(process.pid, has_work=True))
                    before = seconds_of(family[-1])
                    while seconds_of(family[-1]) < before + 0.02:
                        time.sleep(0.01)
            finally:
                for each in family:
                    each.kill()
        assert said == [""] * 6

    def test_one_that_has_ended_is_gone(self, sleeper):
        clock = iter([0, 1])
        watch = Watch(QUICK, lambda: next(clock))
        sleeper.kill()
        while not (sight := look(sleeper.pid)) or not sight.is_gone:
            time.sleep(0.01)
        assert watch.verdict(sleeper.pid, has_work=True) == ""
        assert watch.verdict(sleeper.pid, has_work=True) == "has been gone for 1 s"
