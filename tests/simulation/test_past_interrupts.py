"""Ctrl-C goes to a fork server too, which may be importing what workers need."""

import os
import subprocess
import sys

SCRIPT = """
import multiprocessing, signal

from flwr_asyncdrop.simulation.fork_server import LAST_PRELOADED, start_process
from flwr_asyncdrop.simulation.liveness import LivenessLimits

def hears_of_it():
    held = signal.pthread_sigmask(signal.SIG_BLOCK, set())
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, held)

if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["interrupted", LAST_PRELOADED])
    process = context.Process(target=hears_of_it)
    start_process(process, LivenessLimits())
    process.join()
"""
PRELOADED = """
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(0.1)
"""


def test_a_fork_server_that_imports_does_not_hear_of_it(tmp_path, monkeypatch):
    (tmp_path / "interrupted.py").write_text(PRELOADED)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    paths = (str(tmp_path), *sys.path)  # a fork server of Python 3.11 has no others
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    done = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=600,
    )
    # The processes that it starts hear of later ones.
    assert (done.returncode, done.stdout, done.stderr) == (0, "True set()\n", "")
