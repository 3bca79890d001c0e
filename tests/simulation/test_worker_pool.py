"""Workers import the script that starts them only where they need it."""

import multiprocessing
import subprocess
import sys
import threading

import pytest

from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.simulation.worker_pool import no_main_module
from tests.nightly import nightly

APP = """
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()

@app.train()
def echo(message, context):
    return Message(message.content, reply_to=message)
"""
SCRIPT = """
from flwr_asyncdrop import LocalGrid

with open("imports", "a") as file:
    file.write("once ")

def make_app():
    return app

if __name__ == "__main__":
    with LocalGrid({source}, num_nodes=1, workers=2) as grid:
        (reply,) = grid.send_and_receive([Message(RecordDict(), 1000, "train")])
        assert reply.has_content(), reply.error.reason
"""


def run_python(words, folder, program=""):
    done = subprocess.run(
        [sys.executable, *words],
        input=program,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("source", "imports"),
    [nightly('"own_module:app"', 1), nightly('"__main__:app"', 3), ("make_app", 3)],
)
def test_a_script_is_imported_by_the_workers_that_need_it(tmp_path, source, imports):
    (tmp_path / "script.py").write_text(APP + SCRIPT.format(source=source))
    (tmp_path / "own_module.py").write_text(APP)
    run_python(["script.py"], tmp_path)
    assert (tmp_path / "imports").read_text() == "once " * imports


NO_FILE = (
    APP
    + """
import sys
from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.exceptions import ConfigError

def make_app():
    return app

for source in (make_app, "__main__:app"):
    try:
        LocalGrid(source, num_nodes=1)
    except ConfigError as error:
        assert "from a notebook" in str(error), error
    else:
        sys.exit("was not refused")
LocalGrid(make_app, num_nodes=1, workers=0)
LocalGrid("own_module:app", num_nodes=1).close()
"""
)


@pytest.mark.parametrize("command", [["-c", NO_FILE], ["-"]])
def test_an_app_without_a_file_is_refused(tmp_path, command):
    (tmp_path / "own_module.py").write_text(APP)
    run_python(command, tmp_path, NO_FILE)


def start_a_grid():
    with LocalGrid("own:app", num_nodes=1):
        pass


def test_a_daemon_is_refused():
    spawn = multiprocessing.get_context("spawn")
    daemon = pytest.raises(ConfigError, match="a daemon of multiprocessing")
    with spawn.Pool(1) as pool, daemon:
        pool.apply(start_a_grid)


def test_the_main_module_is_back_afterwards_whatever_happens():
    main = sys.modules["__main__"]
    seen = []

    def start():
        with no_main_module():
            seen.append(sys.modules["__main__"])
            raise OSError("not started")

    with pytest.raises(OSError, match="not started"):
        start()
    assert seen != [main]
    assert sys.modules["__main__"] is main


def test_grids_that_threads_make_at_once_leave_the_main_module(tmp_path, monkeypatch):
    (tmp_path / "thread_app.py").write_text(APP)
    monkeypatch.syspath_prepend(str(tmp_path))
    main = sys.modules["__main__"]
    together = threading.Barrier(3)

    def start():
        together.wait()
        LocalGrid("thread_app:app", num_nodes=1, workers=2).close()

    threads = [threading.Thread(target=start) for _ in range(3)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sys.modules["__main__"] is main
    finally:
        sys.modules["__main__"] = main
