"""What ``asyncdrop supernode`` starts, with a program of the tests for Flower's own."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from flwr_asyncdrop.cli.main import main
from flwr_asyncdrop.device.__main__ import main as run_module
from flwr_asyncdrop.device.node import Settings, node_command
from tests.device.processes import is_running, wait_until

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
            timeout=60,
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
        (Settings(poll=0.1, warm=False, preload=()), ["flower-superexec", "task.pipe"]),
        (Settings(poll=0, warm=False, preload=()), []),
    ],
)
def test_what_is_switched_off_stays_flowers(run, settings, programs):
    assert run(settings)["programs"] == programs


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


@pytest.mark.parametrize("poll", ["-1", "nan", "inf", "1e9"])
def test_a_pause_that_is_none_is_refused(started, poll, capsys):
    assert main(["supernode", "--poll", poll]) == 2
    assert f"--poll {poll}" in capsys.readouterr().err
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
