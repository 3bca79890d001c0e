import os

import pytest

from flwr_asyncdrop.cli.events import Progress
from flwr_asyncdrop.cli.pool import RunPool, Started, share_out
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.cli.worker import Ended, Failed


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


def obedient(channel, workers):
    """Do what the run's name says."""
    while True:
        run = channel.recv()
        if run.name == "die":
            os._exit(3)
        if run.name == "fail":
            channel.send(Failed("told to"))
            continue
        channel.send(Progress(1, 0.5))
        # Which process did it, in a form that the parent understands.
        channel.send(Ended(Progress(os.getpid(), float(workers))))


def runs(tmp_path, *names):
    return [RunSpec(name, tmp_path, {}, devices=1) for name in names]


def test_a_process_takes_run_after_run(tmp_path):
    first, second = runs(tmp_path, "first", "second")
    with RunPool(1, workers=3, work=obedient) as pool:
        events = list(pool.do([first, second]))
    assert [(run.name, type(event)) for run, event in events] == [
        (name, kind)
        for name in ("first", "second")
        for kind in (Started, Progress, Ended)
    ]
    ends = [event.progress for _, event in events if isinstance(event, Ended)]
    assert ends[0] == ends[1]
    assert ends[0].time == 3.0


def test_runs_go_on_beside_each_other(tmp_path):
    with RunPool(2, workers=0, work=obedient) as pool:
        events = list(pool.do(runs(tmp_path, "first", "second")))
    assert [type(event) for _, event in events[:2]] == [Started, Started]
    assert len({e.progress.updates for _, e in events if isinstance(e, Ended)}) == 2


def test_a_run_that_fails_or_kills_its_process_does_not_stop_the_others(tmp_path):
    with RunPool(1, workers=0, work=obedient) as pool:
        events = list(pool.do(runs(tmp_path, "fail", "die", "last")))
    ends = {
        run.name: event for run, event in events if isinstance(event, Ended | Failed)
    }
    assert ends["fail"] == Failed("told to")
    assert "exit code 3" in ends["die"].reason
    assert isinstance(ends["last"], Ended)


def test_a_process_that_dies_before_it_has_a_run_costs_that_run_alone(tmp_path):
    with RunPool(1, workers=0, work=obedient) as pool:
        (process,) = [entry.process for entry in pool._processes]
        process.kill()
        process.join()
        events = [event for _, event in pool.do(runs(tmp_path, "first"))]
        assert [type(event) for event in events] == [Started, Failed]
        assert isinstance(list(pool.do(runs(tmp_path, "next")))[-1][1], Ended)


def test_closing_ends_the_processes(tmp_path):
    pool = RunPool(1, workers=0, work=obedient)
    (process,) = [entry.process for entry in pool._processes]
    pool.close()
    assert process.exitcode is not None
