import errno
import os
import signal
import subprocess
import sys
import time

from flwr_asyncdrop.device.supervisor import Supervisor
from tests.device.processes import is_running, wait_until

UNTIL_INPUT_ENDS = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]
AT_ONCE = [sys.executable, "-I", "-S", "-c", "pass"]


def test_a_killed_process_is_started_again_and_ended_at_last(caplog):
    with Supervisor(UNTIL_INPUT_ENDS, first_pause=0.05) as supervisor:
        first = supervisor.pid
        assert is_running(first)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: supervisor.pid != first)
        second = supervisor.pid
        assert is_running(second)
    assert not is_running(second)
    assert "the trainer has ended (status -9)" in caplog.text
    assert "in 0.05 s" in caplog.text


def test_nothing_is_said_of_one_that_a_signal_ends_with_its_owner(caplog, monkeypatch):
    """As systemd does, and a terminal at Ctrl-C."""
    monkeypatch.setattr("flwr_asyncdrop.device.supervisor._MOMENT", 60.0)
    with Supervisor(UNTIL_INPUT_ENDS) as supervisor:
        os.kill(supervisor.pid, signal.SIGTERM)
        wait_until(lambda: not is_running(supervisor.pid))
        time.sleep(0.1)
    assert not caplog.records


def test_one_that_always_ends_is_started_ever_later(caplog):
    with Supervisor(AT_ONCE, first_pause=0.1):
        wait_until(lambda: "in 0.4 s" in caplog.text)
    pauses = [record.args[1] for record in caplog.records]
    assert pauses[:3] == [0.1, 0.2, 0.4]


def test_it_is_tried_again_when_it_cannot_be_started(monkeypatch):
    """A small device may have no memory for a process at that moment."""
    start, refused = subprocess.Popen, []

    def refuse(*args, **kwargs):
        refused.append(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
        raise refused[-1]

    with Supervisor(UNTIL_INPUT_ENDS, first_pause=0.05) as supervisor:
        first = supervisor.pid
        monkeypatch.setattr(subprocess, "Popen", refuse)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(refused) == 2)
        monkeypatch.setattr(subprocess, "Popen", start)
        wait_until(lambda: supervisor.pid != first)
        assert is_running(supervisor.pid)


def test_it_does_not_wait_for_a_pause_to_end(caplog):
    with Supervisor(AT_ONCE, first_pause=60):
        wait_until(lambda: caplog.records)
        started = time.monotonic()
    assert time.monotonic() - started < 30


def test_one_that_does_not_heed_its_input_is_killed(monkeypatch):
    monkeypatch.setattr("flwr_asyncdrop.device.supervisor._PATIENCE", 0.2)
    stubborn = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    with Supervisor(stubborn) as supervisor:
        assert is_running(supervisor.pid)
    assert not is_running(supervisor.pid)
