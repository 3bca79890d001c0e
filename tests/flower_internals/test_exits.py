"""The end of a process in which Flower runs a ServerApp."""

import subprocess
import sys
import time
from types import ModuleType

import pytest

from flwr_asyncdrop.flower_internals import exits

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


@pytest.fixture
def flower(monkeypatch):
    """Flower, as a version of it that has these functions."""

    def version(**functions):
        module = ModuleType(exits._HOME)
        vars(module).update(functions)
        monkeypatch.setitem(sys.modules, exits._HOME, module)

    return version


def test_a_handler_comes_before_flower_ends_the_process_by_force(flower):
    asked = []

    def add(handler, *, run_before_force_exit=False):
        asked.append((handler, run_before_force_exit))

    flower(add_exit_handler=add)
    assert exits.before_exit(print) == exits.PATIENCE
    assert asked == [(print, True)]


def test_where_it_cannot_it_is_to_hurry(flower):
    asked = []
    flower(add_exit_handler=lambda handler: asked.append(handler))
    assert 0 < exits.before_exit(print) < 5
    assert asked == [print]


def test_without_handlers_there_is_no_time(flower):
    flower()
    assert exits.before_exit(print) == 0


def test_this_version_of_flower_has_handlers(monkeypatch):
    assert exits.before_exit(lambda: None) > 0


WAITS = """
import sys, threading
from types import ModuleType
from flwr_asyncdrop.flower_internals import exits

handlers = []
module = ModuleType(exits._HOME)
module.add_exit_handler = handlers.append
sys.modules[exits._HOME] = module
exits._ENDS_AFTER = 0.3
handlers.append(threading.Event().wait)
exits.end_in_time()
exits.end_in_time()
print(len(handlers), flush=True)
for handler in reversed(handlers):
    handler()
"""


def test_a_handler_of_flowers_that_waits_for_ever_does_not_keep_the_process():
    words = [sys.executable, "-c", WAITS]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stdout) == (1, "2\n")


def test_where_flower_has_a_limit_of_its_own_there_is_no_other(flower):
    def add(handler, *, run_before_force_exit=False):
        pytest.fail("a handler was added")

    flower(add_exit_handler=add)
    exits.end_in_time.__wrapped__()
    flower()
    exits.end_in_time.__wrapped__()
