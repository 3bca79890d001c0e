"""A pool that cannot go on says so each time: nobody waits for what is lost."""

import os

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.simulation import LocalGrid, worker_pool

APP = "grid_apps:app"


def task(node, action, number=0.0):
    content = RecordDict({"task": ConfigRecord({"number": number})})
    return Message(content, node, f"train.{action}")


def no_descriptors():
    raise OSError(24, "Too many open files")


def test_a_worker_that_cannot_be_replaced_ends_every_wait(monkeypatch):
    with LocalGrid(APP, num_nodes=2, workers=1) as grid:
        ids = grid.push_messages([task(1000, "kill")])
        monkeypatch.setattr(worker_pool.socket, "socketpair", no_descriptors)
        for _ in range(2):
            with pytest.raises(RunError, match=r"be started \(Too many open files"):
                grid.wait_any(ids, 300.0)
        with pytest.raises(RunError, match="Too many open files"):
            grid.push_messages([task(1001, "describe")])


def test_a_fork_of_the_caller_takes_no_answers():
    with LocalGrid(APP, num_nodes=1, workers=1) as grid:
        ids = grid.push_messages([task(1000, "sleep", 0.1)])
        child = os.fork()
        if child == 0:
            try:
                grid.wait_any(ids)
            except RunError as error:
                os._exit(7 if "was forked from" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert grid.wait_any(ids, 300.0)
