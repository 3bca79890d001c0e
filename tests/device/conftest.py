"""Programs that stand in for Flower's, and a trainer that runs them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flwr_asyncdrop.device import shim
from flwr_asyncdrop.device.thin import thin_command
from tests.device.processes import PATIENCE, wait_until

PROGRAMS = '''
"""What the trainer takes for Flower's programs: they report on their process."""

import json
import os
import random
import signal
import sys
import time


def report():
    import numpy

    json.dump(
        {
            "arguments": sys.argv,
            "folder": os.getcwd(),
            "variable": os.environ.get("DEVICE_TEST"),
            "process": os.getpid(),
            "parent": os.getppid(),
            "draws": [random.random(), numpy.random.random()],
            "package": sorted(n for n in sys.modules if n.startswith("flwr")),
            "torch": "torch" in sys.modules,
            "input": sys.stdin.read(),
            "signals": [
                signal.getsignal(signal.SIGINT) is signal.default_int_handler,
                signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL,
            ],
        },
        sys.stdout,
    )


def clientapp():
    what, *rest = sys.argv[1:] or ["report"]
    if what == "exit":
        sys.exit(eval(rest[0]))
    if what == "raise":
        raise RuntimeError("out of battery")
    if what == "die":
        os.kill(os.getpid(), signal.Signals[rest[0]])
    if what == "die-after-trainer":
        trainer = os.getppid()
        print("asleep", flush=True)
        while os.getppid() == trainer:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "compute":
        print("computes", os.getpid(), flush=True)
        sum(range(10**int(rest[0])))  # with Python's lock held
    if what == "sleep":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(42))
        print("asleep", os.getpid(), flush=True)
        time.sleep(float(rest[0]))
        print("awake", flush=True)
    if what == "grow":
        clientapp.kept = bytearray(5_000_000)
    if what == "report":
        report()


def supernode():
    if "--crash" in sys.argv:
        raise RuntimeError("out of order")
    first = os.environ["PATH"].split(os.pathsep)[0]
    json.dump(
        {
            "arguments": sys.argv,
            "folder": first,
            "mode": os.stat(first).st_mode & 0o777,
            "programs": sorted(os.listdir(first)),
            "torch": "torch" in sys.modules,
        },
        sys.stdout,
    )
    sys.stdout.flush()
    if "--stay" in sys.argv:
        sys.stdin.read()
    sys.exit(3)
'''

ENTRY_POINTS = """
[console_scripts]
flwr-clientapp = programs_of_tests:clientapp
flower-supernode = programs_of_tests:supernode
"""


@pytest.fixture
def environment(tmp_path):
    """An environment in which these programs come before Flower's own."""
    installed = tmp_path / "installed"
    info = installed / "programs_of_tests-1.0.dist-info"
    info.mkdir(parents=True)
    (installed / "programs_of_tests.py").write_text(PROGRAMS)
    (info / "METADATA").write_text("Name: programs-of-tests\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    return {**os.environ, "PYTHONPATH": str(installed)}


_LISTENS = "00010000"  # the kernel's flag __SO_ACCEPTCON


class Trainer:
    """A trainer's process."""

    def __init__(self, path, environment):
        self.path = path
        self.environment = environment
        self.process = subprocess.Popen(
            thin_command("trainer", str(path), "numpy"),
            stdin=subprocess.PIPE,
            env=environment,
        )
        wait_until(self.listens)

    def listens(self):
        """Whether it answers; its socket is there a moment earlier."""
        sockets = Path("/proc/net/unix").read_text().splitlines()
        mine = [line.split() for line in sockets if line.endswith(f" {self.path}")]
        return any(flags == _LISTENS for _, _, _, flags, *_ in mine)

    def kill(self):
        self.process.kill()
        self.end()

    def end(self):
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@pytest.fixture
def trainer(tmp_path, environment):
    trainer = Trainer(tmp_path / "trainer.socket", environment)
    yield trainer
    trainer.end()


@pytest.fixture
def plain(tmp_path):
    """What stands in for Flower's own program, if the trainer does not take a task."""
    program = tmp_path / "plain"
    program.write_text('#!/bin/sh\necho plain "$@"\nexit 7\n')
    program.chmod(0o700)
    return program


@pytest.fixture
def hand_over(tmp_path, environment, plain):
    """Start the shim with some arguments, as Flower starts its program."""
    started = []

    def start(*arguments, folder=tmp_path, **variables):
        command = [sys.executable, "-I", "-S", shim.__file__]
        process = subprocess.Popen(
            [*command, str(tmp_path / "trainer.socket"), str(plain), *arguments],
            cwd=folder,
            env={**environment, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()
