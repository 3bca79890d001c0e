"""``flwr run`` with a SuperLink of its own, from any folder."""

import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from scripts import flwr_run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Flower in a folder of this name."""

    def install(name):
        package = tmp_path / name / "flwr"
        package.mkdir(parents=True)
        origin = package / "__init__.py"
        origin.touch()
        spec = SimpleNamespace(origin=str(origin))
        monkeypatch.setattr(flwr_run, "find_spec", lambda name: spec)

    return install


@pytest.mark.parametrize("name", ["my project", "a,b", "100%"])
def test_where_alembic_cannot_read_the_path_there_is_a_copy(tmp_path, installed, name):
    installed(name)
    home = tmp_path / "home"
    variables = flwr_run.python_path(home, {"PYTHONPATH": "/mine"})
    copies, mine = variables["PYTHONPATH"].split(":")
    assert Path(copies, "flwr", "__init__.py").exists()
    assert home in Path(copies).parents
    assert mine == "/mine"


@pytest.mark.parametrize("name", ["plain", "it's", "naïve", "a;b$c"])
def test_elsewhere_there_is_none(tmp_path, installed, name):
    installed(name)
    assert flwr_run.python_path(tmp_path / "home", {}) == {}


def test_a_home_that_cannot_be_read_either_is_one_line_with_the_way_out(
    tmp_path, installed
):
    installed("my project")
    with pytest.raises(SystemExit, match="set TMPDIR to a folder without"):
        flwr_run.python_path(tmp_path / "my home", {})


def test_homes_are_made_where_alembic_can_read(monkeypatch):
    monkeypatch.setattr(flwr_run.tempfile, "gettempdir", lambda: "/my tmp")
    assert " " not in flwr_run.folder()
    monkeypatch.setattr(flwr_run.tempfile, "gettempdir", lambda: "/mine")
    assert flwr_run.folder() is None


def test_why_runs_failed():
    runs = [
        {"status": "finished:completed", "status-details": ""},
        {"status": "finished:failed", "status-details": "it broke"},
        {
            "status": "finished:failed",
            "status-details": "Simulation failed with exception: lr=-1 must be more",
        },
        {"status": "finished:stopped"},
    ]
    assert flwr_run.failed_runs(json.dumps({"runs": runs[:1]})) == []
    assert flwr_run.failed_runs(json.dumps({"runs": runs})) == [
        "it broke",
        "lr=-1 must be more",
        "the run is finished:stopped",
    ]
    assert flwr_run.failed_runs("") == ["the SuperLink does not say how the run ended"]


@pytest.fixture
def bare_python(tmp_path, monkeypatch):
    """A Python without programs beside it, as with system site packages."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    return {**os.environ, "FLWR_HOME": str(tmp_path)}


def test_flwr_may_be_elsewhere_on_the_path(tmp_path, bare_python, monkeypatch):
    flwr = tmp_path / "bin" / "flwr"
    flwr.parent.mkdir()
    flwr.write_text("#!/bin/sh\necho '{\"runs\": []}'\n")
    flwr.chmod(0o755)
    monkeypatch.setenv("PATH", f"{flwr.parent}{os.pathsep}{os.environ['PATH']}")
    assert flwr_run.flwr_run(["."], bare_python) == (0, None)


def test_without_flwr_it_says_what_to_do(bare_python):
    with pytest.raises(SystemExit, match="pip install flwr"):
        flwr_run.flwr_run(["."], bare_python)


def test_of_a_failure_the_log_is_kept_and_the_reason_comes_last(
    tmp_path, monkeypatch, capsys
):
    kept = tmp_path / "tmp"
    kept.mkdir()
    monkeypatch.setattr(flwr_run.tempfile, "tempdir", str(kept))
    log = flwr_run.superlink_log(tmp_path)
    log.parent.mkdir()
    log.write_text("Could not start run: Key 'x' is not present\n")
    flwr_run.report_failure(tmp_path, flwr_run.refusal(log))
    (copy,) = kept.glob("superlink-*.log")
    assert copy.read_text() == log.read_text()
    first, last = capsys.readouterr().err.splitlines()
    assert first == f"the SuperLink's log is kept in {copy}"
    assert last.startswith("Key 'x' is not present: the keys stand under")


@pytest.mark.parametrize("heeds_sigterm", [True, False])
def test_a_process_that_ends_by_itself_does_not_keep_others_from_being_ended(
    monkeypatch, heeds_sigterm
):
    # The first one has ended since it was listed, before it is signalled.
    code = "import signal, time; print(1, flush=True); time.sleep(60)"
    if not heeds_sigterm:
        code = "import signal; signal.signal(15, signal.SIG_IGN); " + code
    mark = str(uuid.uuid4())
    environment = os.environ | {"ASYNCDROP_RUN": mark}
    command = [sys.executable, "-c", code]
    with (
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as first,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as second,
    ):
        for process in (first, second):
            process.stdout.readline()
        listed = [psutil.Process(first.pid), psutil.Process(second.pid)]
        assert all(flwr_run.has_mark(process, mark) for process in listed)
        looks = iter([listed, []])
        monkeypatch.setattr(psutil, "process_iter", lambda: next(looks))
        monkeypatch.setattr(flwr_run, "has_mark", lambda process, mark: True)
        monkeypatch.setattr(flwr_run, "_PATIENCE", 0.2)
        first.kill()
        first.wait()
        try:
            flwr_run.end_processes(mark)
            second.wait(50)
        finally:
            second.kill()


STARTS_ANOTHER = """
import signal, subprocess, sys, time

def start(number, frame):
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    print(subprocess.Popen(sleeper).pid, flush=True)
    sys.exit()

signal.signal(signal.SIGTERM, start)
print("ready", flush=True)
time.sleep(60)
"""


def test_what_a_process_starts_while_it_is_ended_is_ended_too():
    mark = str(uuid.uuid4())
    environment = os.environ | {"ASYNCDROP_RUN": mark}
    command = [sys.executable, "-c", STARTS_ANOTHER]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        process.stdout.readline()
        flwr_run.end_processes(mark)
        started = int(process.stdout.readline())
    with suppress(psutil.NoSuchProcess):
        child = psutil.Process(started)
        try:
            child.wait(50)
        finally:
            child.kill()


ENDED = """
import os, subprocess, sys, time
from scripts import flwr_run

def run(arguments, environment):
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    process = subprocess.Popen(sleeper, env=environment)
    print(process.pid, environment["FLWR_HOME"], flush=True)
    time.sleep(60)

flwr_run.flwr_run = run
flwr_run.end_with_signals()
sys.exit(flwr_run.main([]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_who_ends_it_ends_what_it_has_started(number):
    # Whoever starts the tests may ignore some of them.
    command = ["env", "--default-signal", sys.executable, "-c", ENDED]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        started, home = process.stdout.readline().split(maxsplit=1)
        child = psutil.Process(int(started))
        try:
            process.send_signal(number)
            assert process.wait(50) == 128 + number
            child.wait(50)
        finally:
            process.kill()
            with suppress(psutil.NoSuchProcess):
                child.kill()
    assert not Path(home.strip()).exists()


def test_signals_that_are_ignored_stay_so():
    command = [sys.executable, "-c", ENDED]
    ignore = ["env", "--ignore-signal=HUP", *command]
    with subprocess.Popen(ignore, stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(50) == 128 + signal.SIGTERM


_SAME = """
from scripts import flwr_run

found = iter([{port}, 0])  # 0 can be claimed again and again
flwr_run._free_port = found.__next__
print(*flwr_run.free_ports(1))
"""


def test_no_port_is_given_twice_while_its_process_lives(monkeypatch):
    (mine,) = flwr_run.free_ports(1)
    command = [sys.executable, "-c", _SAME.format(port=mine)]
    other = subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    assert other.stdout.split() == [b"0"]
    monkeypatch.setattr(flwr_run, "_free_port", iter([mine, 0]).__next__)
    assert flwr_run.free_ports(1) == [0]
