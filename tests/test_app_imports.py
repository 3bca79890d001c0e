"""Flower's engine loads the two ready apps in two threads at once."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.nightly import nightly, once_in_the_gate

ROOT = Path(__file__).parents[1]

# As the engine does: one thread loads the ServerApp; the other one validates the
# ClientApp's reference, which imports its package outside of Flower's lock, and then
# loads it. The first thread stops before one of its imports until the second one has
# come as far as it can. Python resolves a deadlock of its import locks by raising, or
# by handing out a module that is not ready.
TWO_THREADS = """
import sys, threading
from flwr.supercore.object_ref import load_app, validate

def load_server_app():
    loaded.append(load_app(server_ref, ImportError, "."))

def load_client_app():
    valid, problem = validate(client_ref, project_dir=".")
    assert valid, problem
    loaded.append(load_app(client_ref, ImportError, "."))

def pause(event, args):
    global imports
    if event != "import" or threading.current_thread() is not first:
        return
    if args[0].startswith("flwr_asyncdrop"):
        imports += 1
        if imports == stop_before:
            second.start()
            second.join(0.5)

server_ref, client_ref, order, stop_before = *sys.argv[1:4], int(sys.argv[4])
imports, loaded = 0, []
both = [load_server_app, load_client_app]
first, second = (
    threading.Thread(target=load)
    for load in (both if order == "server-first" else reversed(both))
)
sys.addaudithook(pause)
first.start()
first.join()
second.join()
print(*sorted(type(app).__name__ for app in loaded))
"""


@pytest.mark.parametrize("order", ["server-first", "client-first"])
@pytest.mark.parametrize(
    "stop_before",
    [
        1,
        nightly(2),
        pytest.param(3, marks=once_in_the_gate),
    ],
)
def test_the_apps_load_in_two_threads_at_once(order, stop_before):
    with (ROOT / "pyproject.toml").open("rb") as file:
        refs = tomllib.load(file)["tool"]["flwr"]["app"]["components"]
    done = subprocess.run(
        [
            sys.executable,
            *("-c", TWO_THREADS),
            *(refs["serverapp"], refs["clientapp"]),
            *(order, str(stop_before)),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.split() == ["ClientApp", "ServerApp"], done.stderr
