"""What ``asyncdrop supernode`` starts, with a program of the tests for Flower's own."""

import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, nullcontext
from pathlib import Path

import psutil
import pytest

from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.device import node
from flwr_asyncdrop.device.__main__ import main as run_module
from flwr_asyncdrop.device.node import Settings, node_command
from flwr_asyncdrop.device.private import private_folder, remove_abandoned
from tests.device.processes import is_running, wait_until
from tests.nightly import nightly, once_in_the_gate

ALL = Settings(poll=0.1, warm=True, preload=())
FLOWERS_STATUS = 3


@pytest.fixture
def run(environment):
    def run(settings, *arguments):
        done = subprocess.run(
            node_command(settings, arguments),
            env=environment,
            input="",
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == FLOWERS_STATUS, done.stderr
        return json.loads(done.stdout)

    return run


def test_flowers_own_supernode_runs_with_its_own_arguments_and_without_torch(run):
    said = run(ALL, "--superlink", "a:1", "--node-config", "x=1 y='z'")
    own = ["--superlink", "a:1", "--node-config", "x=1 y='z'"]
    assert said["arguments"] == ["flower-supernode", *own]
    assert not said["torch"]


def test_what_stands_in_for_flowers_programs_is_first_on_the_path_and_private(run):
    said = run(ALL)
    assert {"flower-superexec", "flwr-clientapp"} <= set(said["programs"])
    assert said["mode"] == 0o700
    assert not Path(said["folder"]).exists(), "it is removed in the end"


@pytest.mark.parametrize(
    ("settings", "programs"),
    [
        (
            Settings(poll=0.1, warm=False, preload=()),
            ["flower-superexec", "lock", "task.pipe"],
        ),
        (Settings(poll=0, warm=False, preload=()), ["lock"]),
    ],
)
def test_what_is_switched_off_stays_flowers(run, settings, programs):
    assert run(settings)["programs"] == programs


@pytest.mark.parametrize("most", [None, 30.0])
def test_the_pauses_are_those_of_the_settings(tmp_path, monkeypatch, most):
    paces = []

    def note(least, _, *, longest):
        paces.append((least, longest))

    monkeypatch.setenv("PATH", os.environ["PATH"])  # put back in the end
    monkeypatch.setattr(node, "NodePace", note)
    monkeypatch.setattr(node, "pace_node", lambda _: False)
    monkeypatch.setattr(node, "private_folder", lambda: nullcontext(tmp_path))
    with ExitStack() as stack:
        node.prepare(Settings(0.5, warm=False, preload=(), max_poll=most), stack)
    assert paces == [(0.5, most)]


def test_where_a_socket_can_have_no_address_it_says_so_once(environment, tmp_path):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    done = subprocess.run(
        node_command(ALL, []),
        env={**environment, "TMPDIR": str(folder)},
        input="",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "flwr-clientapp" not in json.loads(done.stdout)["programs"]
    assert "is too long for a socket, so tasks start the plain way" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("room", [0, 20])
def test_without_room_for_its_files_it_is_flowers_own(environment, folder, room):
    """No folder for temporary files, or one in which no program has room."""
    done = subprocess.run(
        node_command(ALL, []),
        env={**environment, "TMPDIR": str(folder)},
        input="",
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (room, room)),
    )
    assert done.returncode == FLOWERS_STATUS, done.stderr
    assert not json.loads(done.stdout)["folder"].startswith(str(folder))
    assert "tasks start the plain way" in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(folder.iterdir()) == []


def test_a_killed_supernode_takes_its_trainer_along(environment):
    with subprocess.Popen(
        node_command(ALL, ["--stay"]),
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as node:
        process = psutil.Process(node.pid)
        wait_until(process.children)
        trainer = process.children()[0].pid
        node.send_signal(signal.SIGKILL)
        node.wait()
        wait_until(lambda: not is_running(trainer))


@pytest.fixture
def folder():
    """Return one whose path leaves room for that of a socket, as tmp_path may not."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@once_in_the_gate
@pytest.mark.parametrize(
    ("number", "warm"),
    [
        (signal.SIGTERM, True),
        nightly(signal.SIGINT, True),
        nightly(signal.SIGHUP, True),
        (signal.SIGKILL, True),
        nightly(signal.SIGTERM, False),
        (signal.SIGINT, False),
        nightly(signal.SIGHUP, False),
        (signal.SIGKILL, False),
    ],
)
def test_nothing_is_left_in_tmpdir(environment, folder, number, warm):
    command = node_command(Settings(0.1, warm, ()), ["--stay"])
    with subprocess.Popen(
        # Whoever starts the tests may ignore some signals, as nohup does.
        ["env", "--default-signal", *command],
        env={**environment, "TMPDIR": str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as node:
        node.stdout.read(1)  # it is there
        (left,) = folder.iterdir()
        if warm:
            wait_until((left / "trainer.socket").exists)
        node.send_signal(number)
        node.wait(300)
        if number != signal.SIGKILL or warm:
            wait_until(lambda: not left.exists())
        else:
            assert left.exists()
            remove_abandoned(folder)
            assert left.exists(), "one that is being made may look like that"
            os.utime(left, (0, 0))
            remove_abandoned(folder)
    assert list(folder.iterdir()) == []


HELD_UP = """
import threading
from flwr_asyncdrop.device.private import private_folder
with private_folder() as folder:
    threading.Thread(target=threading.Event().wait).start()
    print(folder, flush=True)
    threading.Event().wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_though_a_thread_never_does(tmp_path, number):
    """After a first SIGTERM, which Flower takes, a second one left it hanging."""
    with subprocess.Popen(
        ["env", "--default-signal", sys.executable, "-c", HELD_UP],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.exists()
        process.send_signal(number)
        try:
            assert process.wait(30) == -number
        finally:
            process.kill()
    assert not folder.exists()


@once_in_the_gate
def test_a_supernode_that_crashes_leaves_nothing(environment, tmp_path):
    done = subprocess.run(
        node_command(ALL, ["--crash"]),
        env={**environment, "TMPDIR": str(tmp_path / "installed")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "out of order" in done.stderr
    assert list((tmp_path / "installed").glob("asyncdrop-*")) == []


def test_the_folders_of_those_who_live_and_of_others_are_left_alone(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    (tmp_path / "asyncdrop-mine").mkdir()  # not made by a SuperNode: it has no lock
    (tmp_path / "asyncdrop-link").symlink_to(tmp_path / "asyncdrop-mine")
    try:
        with private_folder() as one, private_folder() as other:
            for folder in tmp_path.iterdir():
                os.utime(folder, (0, 0))
            remove_abandoned(tmp_path)
            assert one.exists()
            assert other.exists()
            assert one.stat().st_mode & 0o777 == 0o700
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "asyncdrop-link",
        "asyncdrop-mine",
    ]


def test_what_clears_old_files_away_passes_a_folder_in_use_by(tmp_path, monkeypatch):
    """systemd-tmpfiles heeds a lock on a folder: a device may wait for weeks."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    with private_folder() as folder:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            with pytest.raises(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(descriptor)


def test_a_hang_up_that_is_ignored_as_under_nohup_stays_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = {
        signal.SIGTERM: signal.getsignal(signal.SIGTERM),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    }
    try:
        with private_folder():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)


@pytest.fixture
def started(monkeypatch):
    """The commands that this process would have become."""
    commands = []

    def become(program, command):
        commands.append(command)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    return commands


@pytest.mark.parametrize(
    ("arguments", "settings", "flowers"),
    [
        ([], Settings(0.1, True, ("torch",)), []),
        (
            ["--insecure", "--superlink", "a:1"],
            Settings(0.1, True, ("torch",)),
            ["--insecure", "--superlink", "a:1"],
        ),
        (
            ["--poll", "2", "--no-warm", "--", "--insecure"],
            Settings(2.0, False, ("torch",)),
            ["--insecure"],
        ),
        (
            ["--max-poll", "30", "--insecure"],
            Settings(0.1, True, ("torch",), 30.0),
            ["--insecure"],
        ),
        (
            ["--preload", "sklearn", "--insecure", "--preload", "PIL"],
            Settings(0.1, True, ("torch", "sklearn", "PIL")),
            ["--insecure"],
        ),
    ],
)
def test_the_command_passes_flowers_arguments_on(started, arguments, settings, flowers):
    with pytest.raises(SystemExit):
        main(["supernode", *arguments])
    assert started == [node_command(settings, flowers)]


@pytest.mark.parametrize("poll", ["-1", "nan", "inf", "1e+09"])
def test_a_pause_that_is_none_is_refused(started, poll, capsys):
    assert main(["supernode", "--poll", poll]) == 2
    assert f"--poll {poll}" in capsys.readouterr().err
    assert started == []


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--max-poll", "0"], "--max-poll 0 must be seconds, --poll (0.1) at least"),
        (["--max-poll", "nan"], "--max-poll nan must be seconds"),
        (["--max-poll", "3601"], "--max-poll 3601 must be seconds"),
        (["--poll", "5", "--max-poll", "3"], "--poll (5) at least and 3600 at most"),
        (
            ["--poll", "0", "--max-poll", "30"],
            "--max-poll cannot be with --poll 0",
        ),
    ],
)
def test_a_longest_pause_that_is_none_is_refused(started, flags, reason, capsys):
    assert main(["supernode", *flags]) == 2
    assert reason in capsys.readouterr().err
    assert started == []


def test_a_missing_program_is_refused(started, monkeypatch, capsys):
    monkeypatch.setattr("flwr_asyncdrop.device.command.program_path", lambda _: None)
    assert main(["supernode"]) == 2
    assert "flower-supernode: pip install flwr" in capsys.readouterr().err


def test_the_module_is_the_same_command(started, capsys):
    with pytest.raises(SystemExit):
        run_module(["--no-warm", "--insecure"])
    assert started == [node_command(Settings(0.1, False, ("torch",)), ["--insecure"])]
    with pytest.raises(SystemExit):
        run_module(["--poll", "-2"])
    assert "--poll -2 must be seconds" in capsys.readouterr().err


def test_other_commands_still_refuse_what_they_do_not_know(capsys):
    assert main(["doctor", "--superlink", "a:1"]) == 2
    assert "unknown: '--superlink' 'a:1'" in capsys.readouterr().err
