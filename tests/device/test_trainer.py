"""Tasks that are handed to the trainer, and what happens when it is not there."""

import errno
import json
import os
import signal
import socket
import stat
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from flwr_asyncdrop.device import shim
from flwr_asyncdrop.device.thin import thin_command
from flwr_asyncdrop.device.trainer import serve
from tests.device.processes import PATIENCE, is_running, wait_until
from tests.nightly import by_night

PLAIN = 7


def outcome(process):
    """Wait for the end of a process; return its output and status."""
    output, _ = process.communicate(timeout=600)
    return output, process.returncode


def report(process):
    output, status = outcome(process)
    assert status == 0, output
    return json.loads(output)


def test_a_task_runs_as_if_it_had_been_started_there(
    trainer, hand_over, tmp_path, plain
):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    said = report(hand_over("report", "--token", "x y", folder=folder, DEVICE_TEST="é"))
    assert said["arguments"] == [str(plain), "report", "--token", "x y"]
    assert said["folder"] == str(folder)
    assert said["variable"] == "é"
    assert said["input"] == ""
    assert said["signals"] == [True, True]
    assert said["parent"] == trainer.process.pid


def test_every_task_is_a_process_of_its_own_with_its_own_randomness(trainer, hand_over):
    first, second = report(hand_over()), report(hand_over())
    assert first["process"] != second["process"]
    assert first["parent"] == second["parent"] == trainer.process.pid
    for one, other in zip(first["draws"], second["draws"], strict=True):
        assert one != other


def test_the_trainer_holds_no_copy_of_the_package_that_an_app_may_bring(
    trainer, hand_over
):
    said = report(hand_over())
    assert said["package"] == []
    assert not said["torch"]


@pytest.mark.parametrize(
    ("code", "status"), [("0", 0), ("3", 3), ("None", 0), ("'no'", 1), ("256 + 5", 5)]
)
def test_the_status_of_a_task_is_the_shims(trainer, hand_over, code, status):
    assert outcome(hand_over("exit", code))[1] == status


def test_a_task_that_raises_says_so_where_its_output_goes(trainer, hand_over):
    output, status = outcome(hand_over("raise"))
    assert status == 1
    assert "out of battery" in output


@pytest.mark.parametrize("name", ["SIGKILL", "SIGABRT", "SIGSEGV", "SIGTERM"])
def test_a_task_that_crashes_says_how_and_takes_nothing_along(trainer, hand_over, name):
    output, status = outcome(hand_over("die", name))
    assert status == -signal.Signals[name]
    assert output == f"flwr-clientapp: the task was ended by {name}\n"
    assert report(hand_over())["parent"] == trainer.process.pid


def test_a_task_that_crashes_without_its_trainer_is_a_crash(trainer, hand_over):
    task = hand_over("die-after-trainer")
    assert task.stdout.readline().startswith("asleep")
    trainer.kill()
    output, status = outcome(task)
    assert status == 1
    assert output == "flwr-clientapp: the task and its trainer have vanished\n"


@pytest.mark.parametrize("what", ["sleep", "compute"])
def test_a_shim_that_is_killed_takes_its_task_along(trainer, hand_over, what):
    task = hand_over(what, "60")
    process = int(task.stdout.readline().split()[1])
    assert is_running(process)
    task.kill()
    wait_until(lambda: not is_running(process))
    assert report(hand_over())["parent"] == trainer.process.pid


def test_a_shim_that_is_killed_takes_its_task_along_without_a_trainer_too(
    trainer, hand_over
):
    task = hand_over("compute", "60")
    process = int(task.stdout.readline().split()[1])
    trainer.kill()
    task.kill()
    wait_until(lambda: not is_running(process))


def test_the_text_of_an_exit_is_said(trainer, hand_over):
    assert outcome(hand_over("exit", "'no data'")) == ("no data\n", 1)


def test_tasks_can_overlap(trainer, hand_over):
    slow = hand_over("sleep", "60")
    assert slow.stdout.readline().startswith("asleep")
    assert report(hand_over())["parent"] == trainer.process.pid
    slow.send_signal(signal.SIGTERM)
    assert outcome(slow) == ("", 42), "SIGTERM is passed on to the task"


def test_without_a_trainer_the_plain_program_runs(hand_over):
    assert outcome(hand_over("a", "b c")) == ("plain a b c\n", PLAIN)


def test_with_a_dead_trainer_the_plain_program_runs(trainer, hand_over):
    trainer.kill()
    assert trainer.path.exists()
    assert outcome(hand_over("a")) == ("plain a\n", PLAIN)


def test_with_something_else_in_its_place_the_plain_program_runs(hand_over, tmp_path):
    (tmp_path / "trainer.socket").write_text("")
    assert outcome(hand_over("a")) == ("plain a\n", PLAIN)


def test_an_app_with_its_own_environment_is_not_for_the_trainer(trainer, hand_over):
    flag = "--allow-runtime-dependency-installation"
    assert outcome(hand_over(flag)) == (f"plain {flag}\n", PLAIN)


def test_a_task_outlives_its_trainer(trainer, hand_over):
    task = hand_over("sleep", "1")
    assert task.stdout.readline().startswith("asleep")
    trainer.kill()
    assert outcome(task) == ("awake\n", 0)


def test_the_trainer_ends_with_its_owner(trainer):
    assert trainer.end() == 0


def test_the_trainer_minds_no_interrupt_and_no_nonsense(trainer, hand_over):
    trainer.process.send_signal(signal.SIGINT)
    for nonsense in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\2{}"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(trainer.path))
            connection.sendall(nonsense)
    assert report(hand_over())["parent"] == trainer.process.pid


def test_whoever_does_not_say_go_gets_nothing_done(trainer, tmp_path):
    """Else a task might run in the trainer and, the plain way, outside of it."""
    marks = tmp_path / "marks"
    task = {"command": ["x", "exit", f"open({str(marks)!r}, 'w')"], "folder": "/"}
    data = json.dumps({**task, "environ": dict(os.environ)}).encode()
    for answer, done in ((b"", False), (shim.GO, True)):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(trainer.path))
            length = shim.LENGTH.pack(len(data))
            with Path(os.devnull).open() as null:
                socket.send_fds(connection, [length], [null.fileno()] * 3)
            connection.sendall(data)
            assert connection.recv(1) == shim.ACCEPTED
            connection.recv(shim.LENGTH.size)
            connection.sendall(answer)
            if not answer:
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(30)
            assert bool(connection.recv(1)) is done
        assert marks.exists() is done


def test_the_socket_is_its_users_alone(trainer):
    mode = trainer.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_socket_is_never_anybody_elses(tmp_path, monkeypatch):
    """Its mode is right when it appears, without a change afterwards."""
    reading, writing = os.pipe()
    os.close(writing)  # so that it ends at once
    seen = []
    bind = socket.socket.bind

    class Watched(socket.socket):
        def bind(self, address):
            bind(self, address)
            seen.append(stat.S_IMODE(Path(address).stat().st_mode))

    monkeypatch.setattr(socket, "socket", Watched)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    serve(tmp_path / "socket", reading)
    os.close(reading)
    assert seen == [0o600]


def test_another_users_process_is_refused(monkeypatch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        shim.require_own_peer(ours)
        user = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: user + 1)
        with pytest.raises(PermissionError, match=f"user {user}'s, not {user + 1}'s"):
            shim.require_own_peer(ours)


def test_a_trainer_that_does_not_answer_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(shim, "PATIENCE", 0.2)
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with pytest.raises(ConnectionError):
            shim.offer(path, ["x"])
        refusing = threading.Thread(target=lambda: listener.accept()[0].close())
        refusing.start()
        with pytest.raises(ConnectionError):
            shim.offer(path, ["x"])
        refusing.join()


def test_a_task_for_which_there_is_no_process_is_left_to_its_shim(
    tmp_path, monkeypatch, caplog
):
    """A small device may have no memory for one at that moment."""
    path = tmp_path / "socket"
    reading, writing = os.pipe()
    over = threading.Event()

    def offer():
        while len(caplog.records) < 2 and not over.is_set():
            with pytest.raises(ConnectionError):
                shim.offer(str(path), ["x"])
        os.close(writing)

    def refuse():
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    offering = threading.Thread(target=offer)
    offering.start()
    try:
        assert serve(path, reading) is None
    finally:
        over.set()
        offering.join()
        os.close(reading)
    assert caplog.text.count("a task starts the plain way") == 2


@by_night
def test_two_hundred_tasks_leave_nothing_behind(trainer, monkeypatch):
    monkeypatch.setattr(shim, "pass_signals_on", lambda _: None)
    process = psutil.Process(trainer.process.pid)

    def do(count):
        for _ in range(count):
            with shim.offer(str(trainer.path), ["flwr-clientapp", "grow"]) as task:
                assert shim.wait(task) == 0
        wait_until(lambda: not process.children())
        return process.memory_info().rss, process.num_fds(), process.num_threads()

    memory, *others = do(5)
    memory_then, *others_then = do(200)
    assert memory_then - memory < 1_000_000
    assert others_then == others


def test_a_module_that_cannot_be_imported_is_named(tmp_path, environment):
    done = subprocess.run(
        thin_command("trainer", str(tmp_path / "trainer.socket"), "no_such_module"),
        env=environment,
        input="",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot import no_such_module" in done.stderr


def test_one_whose_folder_is_gone_ends_without_a_traceback(tmp_path, environment):
    """Its owner may have ended while it was importing."""
    done = subprocess.run(
        thin_command("trainer", str(tmp_path / "gone" / "trainer.socket")),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_it_imports_ends_it_without_a_traceback(
    tmp_path, environment
):
    (tmp_path / "slow.py").write_text(
        "import sys, time\nprint('importing', flush=True)\ntime.sleep(600)\n"
    )
    paths = os.pathsep.join([str(tmp_path), environment.get("PYTHONPATH", "")])
    with subprocess.Popen(
        thin_command("trainer", str(tmp_path / "trainer.socket"), "slow"),
        env=environment | {"PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == -signal.SIGINT
        assert process.stderr.read() == ""
