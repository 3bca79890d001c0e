"""A process ends although a call of a grid that never returns is under way."""

import subprocess
import sys
import time

import pytest

HANGS = """
import sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from flwr_asyncdrop.flower_internals.exits import end_without_daemons

def call():
    # As Flower's grid does it.
    executor = ThreadPoolExecutor(max_workers=2)
    executor.submit(time.sleep, 600)
    begun.set()
    time.sleep(600)

if sys.argv[1] == "told":
    end_without_daemons()
    end_without_daemons()
begun = threading.Event()
threading.Thread(target=call, daemon=True).start()
begun.wait()
mine = ThreadPoolExecutor(max_workers=1)
mine.submit(lambda: (time.sleep(0.5), print("done", flush=True)))
print("ends", flush=True)
"""


def ends(how, timeout):
    words = [sys.executable, "-c", HANGS, how]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=timeout, check=True
    )


def test_it_ends_at_once_and_waits_for_executors_of_its_own():
    began = time.monotonic()
    assert ends("told", 500).stdout == "ends\ndone\n"
    assert time.monotonic() - began < 400


def test_python_alone_would_wait():
    with pytest.raises(subprocess.TimeoutExpired):
        ends("untold", 6)
