import os
import re
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver, popen_forkserver

import pytest

from flwr_asyncdrop.cli.events import Done, Ended, Failed, RunProgress, Started
from flwr_asyncdrop.cli.pool import RunPool, share_out
from flwr_asyncdrop.cli.runs import LOG, RunSpec
from flwr_asyncdrop.simulation.liveness import LivenessLimits


def obedient(run, backend, channel):
    """Do what the run's name says."""
    run.folder.mkdir()
    (run.folder / LOG).write_text("printed\n  a line\n\n")
    if run.name == "die":
        os._exit(3)
    if run.name == "fail":
        channel.send(Failed("told to"))
        sys.exit(1)
    channel.send(RunProgress(1, float(backend), ("accuracy", 0.5)))
    if run.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if run.name == "stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    while run.name == "stay":
        time.sleep(0.1)
    channel.send(RunProgress(2, float(os.getpid())))
    if run.name == "vanish":
        os._exit(0)
    channel.send(Done())


FORKED = """
import sys
from pathlib import Path
from flwr_asyncdrop.cli.pool import RunPool
from flwr_asyncdrop.cli.runs import RunSpec
from tests.cli.test_pool import forked
if __name__ == "__main__":
    with RunPool([3], work=forked) as pool:
        for _, event in pool.do([RunSpec("a", Path(sys.argv[1]), {}, devices=1)]):
            pass
"""


def forked(run, backend, channel):
    """Write which modules there are before a run has begun."""
    run.folder.mkdir()
    (run.folder / LOG).write_text(" ".join(sys.modules))


def test_a_run_begins_with_all_that_it_will_import(tmp_path):
    folder = tmp_path / "run"
    subprocess.run([sys.executable, "-c", FORKED, str(folder)], check=True, timeout=600)
    there = set((folder / LOG).read_text().split())
    assert {"torch._dynamo", "matplotlib.figure", "numba", "flwr.app"} <= there


@pytest.mark.parametrize(
    ("jobs", "runs", "expected"),
    [
        (2, 12, (2, 0)),  # as many runs as cores: no other processes
        (8, 8, (8, 0)),
        (8, 5, (5, 0)),
        (8, 3, (3, 2)),
        (8, 1, (1, 8)),
        (1, 1, (1, 0)),
        (4, 0, (0, 0)),
    ],
)
def test_cores_are_shared_out_between_runs(jobs, runs, expected):
    assert share_out(jobs, runs) == expected


def runs(tmp_path, *names):
    return [RunSpec(name, tmp_path / name, {"lr": 0.5}, devices=1) for name in names]


def done(pool, runs):
    return [(run.name, event) for run, event in pool.do(runs)]


def test_one_run_after_the_other_each_in_a_process_of_its_own(tmp_path):
    with RunPool([3], work=obedient) as pool:
        events = done(pool, runs(tmp_path, "first", "second"))
    assert [(name, type(event)) for name, event in events] == [
        (name, kind)
        for name in ("first", "second")
        for kind in (Started, RunProgress, RunProgress, Ended)
    ]
    assert events[1] == ("first", RunProgress(1, 3.0, ("accuracy", 0.5)))
    last, end = events[2][1], events[3][1]
    assert end == Ended(last)
    assert last.time not in (events[-1][1].progress.time, os.getpid())


def test_runs_are_side_by_side(tmp_path):
    with RunPool([0, 0], work=obedient) as pool:
        events = pool.do(runs(tmp_path, "stay", "first"))
        ended = next(run for run, event in events if isinstance(event, Ended))
    assert ended.name == "first"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fail", "told to"),
        ("die", "its process died with exit code 3: a line"),
        (
            "killed",
            "its process died with exit code -9 (out of memory?): a line",
        ),
        ("vanish", "its process died with exit code 0: a line"),
    ],
)
def test_a_run_that_fails_or_kills_its_process_does_not_stop_the_others(
    tmp_path, name, reason
):
    with RunPool([0], work=obedient) as pool:
        ends = dict(done(pool, runs(tmp_path, name, "last")))
    assert ends[name] == Failed(reason)
    assert isinstance(ends["last"], Ended)


def test_a_run_keeps_its_exit_code_though_another_one_starts(tmp_path, monkeypatch):
    """A start looks for the exit codes of others: a run that was well had failed."""
    joins, seconds = threading.local(), iter([1.0])

    def poll(self, flag=os.WNOHANG, poll=popen_forkserver.Popen.poll):
        joins.now = flag != os.WNOHANG
        return poll(self, flag)

    def read(descriptor, read=forkserver.read_signed):
        time.sleep(next(seconds, 0.0) if getattr(joins, "now", False) else 0.0)
        return read(descriptor)

    monkeypatch.setattr(popen_forkserver.Popen, "poll", poll)
    monkeypatch.setattr(forkserver, "read_signed", read)
    names = ["first", "second", "third"]
    with RunPool([0, 1], work=obedient) as pool:
        ends = dict(done(pool, runs(tmp_path, *names)))
    assert [type(ends[name]) for name in names] == 3 * [Ended]


def test_a_run_that_no_process_can_have_fails(tmp_path):
    with RunPool([0], work=lambda: None) as pool:
        ((_, event),) = done(pool, runs(tmp_path, "first"))
    assert "local object" in event.reason


def test_a_run_for_which_no_thread_can_be_started_says_which_limit(
    tmp_path, monkeypatch
):
    def start(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("flwr_asyncdrop.cli.pool.start_process", start)
    with RunPool([0], work=obedient) as pool:
        ((_, event),) = done(pool, runs(tmp_path, "first"))
    assert event.reason.startswith("no thread can be started: see the limits of this")


def test_closing_ends_the_processes_and_starts_no_more(tmp_path):
    pool = RunPool([0], work=obedient)
    events = pool.do(runs(tmp_path, "stay", "next"))
    assert [next(events)[1] for _ in range(2)] == [
        Started(),
        RunProgress(1, 0.0, ("accuracy", 0.5)),
    ]
    (process,) = pool._processes
    pool.close()
    assert process.exitcode == -signal.SIGTERM
    assert not (tmp_path / "next").exists()


IMPORTING = """
import sys, threading, time
from pathlib import Path
from flwr_asyncdrop.cli import pool
from flwr_asyncdrop.cli.runs import RunSpec
from tests.cli.test_pool import forked
pool._PRELOADED = "takes_long"
if __name__ == "__main__":
    here = Path(sys.argv[1])
    runs = pool.RunPool([0, 1], work=forked)
    events = runs.do([RunSpec(each, here / each, {}, devices=1) for each in "ab"])
    threading.Thread(target=lambda: list(events), daemon=True).start()
    while not (here / "imports").exists():
        time.sleep(0.05)
    began = time.monotonic()
    runs.close()
    print(time.monotonic() - began)
"""
TAKES_LONG = """
import pathlib, time
pathlib.Path({path!r}).touch()
time.sleep(60)
"""


def test_closing_does_not_wait_for_the_imports_of_what_is_not_wanted(tmp_path):
    """A comparison that had just been started took ten seconds to end."""
    code = TAKES_LONG.format(path=str(tmp_path / "imports"))
    (tmp_path / "takes_long.py").write_text(code)
    folders = [str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    assert float(done.stdout) < 30
    assert done.stderr == ""
    assert not (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()


def test_ctrl_c_ends_the_wait_also_where_another_thread_heard_it(tmp_path):
    """Python has the main thread heed it, whom nothing wakes from a lock then."""

    def press():
        time.sleep(0.3)  # the main thread waits by then
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    with RunPool([0], work=obedient) as pool:
        events = pool.do(runs(tmp_path, "stay"))
        assert [type(next(events)[1]) for _ in range(2)] == [Started, RunProgress]
        limit = threading.Timer(60, pool.close)  # which ends the run, and so the wait

        def wait():
            threading.Thread(target=press).start()
            next(events)

        limit.start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):  # wherever this thread is by then
            wait()
        limit.cancel()
        assert time.monotonic() - started < 50


def test_a_process_that_is_stopped_costs_its_run_and_is_named(tmp_path):
    limits = LivenessLimits(stopped=0.3, interval=0.1)
    with RunPool([0], work=obedient, limits=limits) as pool:
        *_, (_, stopped), (_, started), _, _, (_, ended) = done(
            pool, runs(tmp_path, "stopped", "next")
        )
    assert isinstance(stopped, Failed)
    assert re.search(r"process \d+ has been stopped \(SIGSTOP\)", stopped.reason)
    assert isinstance(started, Started)
    assert isinstance(ended, Ended)
