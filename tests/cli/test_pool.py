import signal
import sys

import pytest

from flwr_asyncdrop.cli.events import Ended, Failed, RunProgress, Started
from flwr_asyncdrop.cli.pool import RunPool, share_out
from flwr_asyncdrop.cli.runs import LOG, RunSpec

# Does what the run's name says.
OBEDIENT = """
import json, os, sys, time
run, workers, channel = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
def say(kind, **fields):
    os.write(channel, (json.dumps({kind: fields}) + chr(10)).encode())
print("printed", flush=True)
name = run["name"]
if name == "die":
    print("no room", file=sys.stderr, flush=True)
    os._exit(3)
if name == "fail":
    say("Failed", reason="told to")
    sys.exit(1)
say("RunProgress", updates=1, time=float(workers), metric=["accuracy", 0.5], lost=0)
if name == "killed":
    os.kill(os.getpid(), 9)
while name == "stay":
    time.sleep(0.1)
"""
COMMAND = (sys.executable, "-c", OBEDIENT)
PROGRESS = RunProgress(1, 3.0, ("accuracy", 0.5))
WITHOUT_WORKERS = RunProgress(1, 0.0, ("accuracy", 0.5))


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


def test_one_run_after_the_other_in_processes_with_a_log_each(tmp_path):
    asked = runs(tmp_path, "first", "second")
    with RunPool(1, workers=3, command=COMMAND) as pool:
        events = done(pool, asked)
    assert events == [
        (name, event)
        for name in ("first", "second")
        for event in (Started(), PROGRESS, Ended(PROGRESS))
    ]
    assert [(run.folder / LOG).read_text() for run in asked] == ["printed\n"] * 2


def test_runs_are_side_by_side(tmp_path):
    with RunPool(2, workers=0, command=COMMAND) as pool:
        events = pool.do(runs(tmp_path, "stay", "first"))
        while next(events)[1] != Ended(WITHOUT_WORKERS):
            pass


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("fail", "told to"),
        ("die", "its process died with exit code 3: no room"),
        ("killed", "its process died with exit code -9 (out of memory?): printed"),
    ],
)
def test_a_run_that_fails_or_kills_its_process_does_not_stop_the_others(
    tmp_path, name, reason
):
    with RunPool(1, workers=0, command=COMMAND) as pool:
        ends = dict(done(pool, runs(tmp_path, name, "last")))
    assert ends[name] == Failed(reason)
    assert isinstance(ends["last"], Ended)


def test_a_process_that_cannot_be_started_costs_its_run(tmp_path):
    with RunPool(1, workers=0, command=("/no/such/program",)) as pool:
        ((_, event),) = done(pool, runs(tmp_path, "first"))
    assert event.reason.startswith("FileNotFoundError")


def test_closing_ends_the_processes_and_starts_no_more(tmp_path):
    pool = RunPool(1, workers=0, command=COMMAND)
    events = pool.do(runs(tmp_path, "stay", "next"))
    assert [next(events)[1] for _ in range(2)] == [Started(), WITHOUT_WORKERS]
    (process,) = pool._processes
    pool.close()
    assert process.returncode == -signal.SIGTERM
    assert not (tmp_path / "next").exists()
