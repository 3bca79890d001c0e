"""A signal ends a command with a line and a status of its own, wherever it is."""

import subprocess
import sys

import pytest

# The tests may run under nohup, or in the background of a shell.
HEEDED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
"""
# Some packages make an ImportError of what a handler of signals raises.
IMPORTING = """
import os, signal, sys, time
from flwr_asyncdrop.cli import main

def imported(name):
    try:
        os.kill(os.getpid(), {signum})
        time.sleep(10)
    except BaseException as error:
        raise ImportError("cannot load module more than once") from error

main.import_module = imported
sys.exit(main.main(["tune"]))
"""
WORKING = """
import os, signal, sys, time
from flwr_asyncdrop.cli import main, report

def run(arguments):
    os.kill(os.getpid(), {signum})
    time.sleep(10)

report.run = run
sys.exit(main.main(["report", "."]))
"""
ENDINGS = [
    ("SIGINT", 130, "interrupted"),
    ("SIGTERM", 143, "ended by SIGTERM"),
    ("SIGHUP", 129, "ended by SIGHUP"),
]


@pytest.mark.parametrize("code", [IMPORTING, WORKING], ids=["importing", "working"])
@pytest.mark.parametrize(("name", "status", "says"), ENDINGS)
def test_a_signal_ends_a_command_with_a_line(code, name, status, says):
    script = HEEDED + code.format(signum=f"signal.{name}")
    ended = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (ended.returncode, ended.stdout) == (status, "")
    assert ended.stderr == f"asyncdrop: {says}\n"
