"""What a runner that is defined outside of the package can rely on."""

import gc
import pickle

import pytest
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode

from flwr_asyncdrop.simulation import Answer, ClientCall, LocalGrid, Runner
from tests.simulation.thread_runner import ThreadRunner

APP = "grid_apps:app"


def task(node: int, action: str = "tally", number: float = 0) -> Message:
    content = RecordDict({"task": ConfigRecord({"number": number})})
    return Message(content, node, f"train.{action}")


class LossyRunner(ThreadRunner):
    """Loses every call of node 1002, and runs every other twice, as after a loss."""

    def __init__(self) -> None:
        super().__init__(APP)
        self.under_way: set[int] = set()
        self.lost: list[ClientCall] = []

    def submit(self, call: ClientCall) -> None:
        node = call.message.metadata.dst_node_id
        assert node not in self.under_way, "two calls of one node"
        self.under_way.add(node)
        if node == 1002:
            self.lost.append(call)
        else:
            self._run(pickle.dumps(call))
            super().submit(call)

    def collect(self, timeout: float | None) -> list[Answer]:
        lost, self.lost = self.lost, []
        answers = [call.fail("The machine is gone.", crashed=True) for call in lost]
        answers = answers or super().collect(timeout)
        self.under_way -= {answer.reply.metadata.src_node_id for answer in answers}
        return answers


def test_the_calls_run_where_the_runner_says_and_it_is_closed_with_the_grid() -> None:
    runner = ThreadRunner(APP)
    with LocalGrid(num_nodes=4, runner=runner) as grid:
        replies = grid.send_and_receive(task(node) for node in grid.get_node_ids())
        assert all(reply.has_content() for reply in replies)
        assert not runner.is_closed
    assert runner.ran_in
    assert runner.is_closed


def test_a_forgotten_grid_closes_its_runner() -> None:
    runner = ThreadRunner(APP)
    grid = LocalGrid(num_nodes=1, runner=runner)
    del grid
    gc.collect()
    assert runner.is_closed


def test_a_lost_call_is_an_error_reply_and_one_that_runs_again_is_as_the_first() -> (
    None
):
    with LocalGrid(num_nodes=3, runner=LossyRunner()) as grid:
        messages = [task(node, number=n) for n in range(5) for node in (1000, 1002)]
        replies = grid.send_and_receive(messages)
    failed = [reply for reply in replies if reply.metadata.src_node_id == 1002]
    assert [reply.error.code for reply in failed] == [ErrorCode.CLIENT_APP_CRASHED] * 5
    assert {reply.error.reason for reply in failed} == {"The machine is gone."}
    seen = [r.content["seen"]["numbers"] for r in replies if r.has_content()]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]]


def test_the_interface_cannot_be_made() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Runner()  # type: ignore[abstract]
