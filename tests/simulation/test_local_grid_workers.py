"""The worker processes of LocalGrid: how they live, die and are replaced."""

import functools
import gc
import multiprocessing
import os
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode

from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.simulation import LocalGrid, worker_pool
from flwr_asyncdrop.simulation.local_grid import MOST_WORKERS
from flwr_asyncdrop.simulation.worker import serve
from tests.nightly import nightly

APP = "grid_apps:app"
NODES = 6


def task(node: int, action: str, number: float = 0) -> Message:
    content = RecordDict({"task": ConfigRecord({"number": number})})
    return Message(content, node, f"train.{action}")


def ask(grid: LocalGrid, node: int, action: str = "describe") -> Message:
    (reply,) = grid.send_and_receive([task(node, action)])
    return reply


def pid_of(grid: LocalGrid) -> int:
    pid = ask(grid, 1000).content["facts"]["pid"]
    assert isinstance(pid, int)
    return pid


def wait_until(is_true: Callable[[], bool], seconds: float = 300.0) -> bool:
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_tasks_run_in_one_persistent_process_with_the_threads_given() -> None:
    with LocalGrid(APP, num_nodes=2, workers=1, threads_per_worker=2) as grid:
        facts = [ask(grid, node).content["facts"] for node in (1000, 1001, 1000)]
    assert len({fact["pid"] for fact in facts}) == 1
    assert facts[0]["pid"] != os.getpid()
    assert [fact["threads"] for fact in facts] == [2, 2, 2]


def test_a_worker_is_given_the_slots_of_as_many_workers_as_there_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = MOST_WORKERS * worker_pool._CALLS_PER_WORKER
    monkeypatch.setattr(worker_pool, "_CALLS_PER_WORKER", slots)
    with LocalGrid(APP, num_nodes=1, workers=1) as grid:
        assert ask(grid, 1000).has_content()


def test_two_workers_share_the_tasks() -> None:
    with LocalGrid(APP, num_nodes=NODES, workers=2) as grid:
        messages = [task(node, "describe") for node in grid.get_node_ids()]
        replies = grid.send_and_receive(messages)
    assert len({reply.content["facts"]["pid"] for reply in replies}) == 2


@pytest.mark.parametrize(
    ("action", "cause"),
    [
        ("exit", "ended with exit code 3"),
        ("kill", "was ended by SIGKILL"),
        ("real_time", f"was ended by signal {signal.SIGRTMIN + 3}"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_worker_that_dies_costs_its_task_only(
    action: str, cause: str, workers: int
) -> None:
    with LocalGrid(APP, num_nodes=NODES, workers=workers) as grid:
        assert not ask(grid, 1000, "tally").has_error()
        nodes = grid.get_node_ids()
        actions = [action, *["tally"] * 5]
        messages = [task(n, a, 1) for n, a in zip(nodes, actions, strict=True)]
        replies = {
            reply.metadata.src_node_id: reply
            for reply in grid.send_and_receive(messages)
        }
        error = replies.pop(1000).error
        assert error.code == ErrorCode.CLIENT_APP_CRASHED
        assert cause in (error.reason or "")
        assert [replies[n].has_content() for n in nodes[1:]] == [True] * 5
        # The node keeps the state that it had before the task that was lost.
        seen = ask(grid, 1000, "tally").content["seen"]["numbers"]
        assert seen == [0, 0]
        assert len(multiprocessing.active_children()) == workers


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("number", "status"), [(0, 1), (1, 4), (2, 1)])
def test_a_process_that_the_app_has_forked_answers_nothing(
    workers: int, number: int, status: int
) -> None:
    with LocalGrid(APP, num_nodes=1, workers=workers) as grid:
        (reply,) = grid.send_and_receive([task(1000, "fork", number)])
        pid = pid_of(grid)
        assert reply.content["facts"] == {"pid": pid, "status": status}


def test_every_death_is_answered_even_when_all_workers_die_at_once() -> None:
    with LocalGrid(APP, num_nodes=NODES, workers=2) as grid:
        replies = grid.send_and_receive(task(n, "kill") for n in grid.get_node_ids())
        codes = [reply.error.code for reply in replies]
        assert codes == [ErrorCode.CLIENT_APP_CRASHED] * NODES
        assert ask(grid, 1000).has_content()


def test_idle_worker_that_is_killed_is_replaced() -> None:
    with LocalGrid(APP, num_nodes=1, workers=1) as grid:
        pid = pid_of(grid)
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not is_running(pid))
        assert pid_of(grid) != pid


def test_reply_that_cannot_be_sent_is_an_error_reply() -> None:
    with LocalGrid(APP, num_nodes=1, workers=1) as grid:
        reply = ask(grid, 1000, "unsendable")
        assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        reason = r"The ClientApp's reply cannot be sent: \w+Error: [^\n]+"
        assert re.fullmatch(reason, reply.error.reason)
        assert ask(grid, 1000).has_content()


def test_reply_that_cannot_be_read_is_an_error_reply() -> None:
    with LocalGrid(APP, num_nodes=1, workers=1) as grid:
        reply = ask(grid, 1000, "unreadable")
        assert reply.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
        assert reply.error.reason.endswith("cannot be read: OSError: not mine")
        seen = ask(grid, 1000, "tally").content["seen"]["numbers"]
        assert seen == [0]


def test_task_behind_a_long_one_moves_to_an_idle_worker() -> None:
    with LocalGrid(APP, num_nodes=4, workers=2) as grid:
        # Both workers get two; the one that sleeps gives its second away.
        actions = [("sleep", 30), ("tally", 1), ("tally", 2), ("tally", 3)]
        ids = grid.push_messages(
            task(node, *action)
            for node, action in zip(grid.get_node_ids(), actions, strict=True)
        )
        waiting = set(ids[1:])
        while waiting:
            assert grid.wait_any(waiting, 10.0)
            for reply in grid.pull_messages(waiting):
                waiting.discard(reply.metadata.reply_to_message_id)
        assert grid.pull_messages(ids[:1]) == []


def test_timeouts_end_the_wait_and_keep_the_reply() -> None:
    with LocalGrid(APP, num_nodes=2, workers=1) as grid:
        pid = pid_of(grid)
        os.kill(pid, signal.SIGSTOP)
        pushed = list(grid.push_messages([task(1000, "describe")]))
        assert grid.send_and_receive([task(1000, "describe")], timeout=0.05) == []
        assert not grid.wait_any(pushed, 0.05)
        assert not grid.wait_any(pushed, 0.0)
        os.kill(pid, signal.SIGCONT)
        assert grid.wait_any(pushed)
        (reply,) = grid.pull_messages(pushed)
        assert reply.has_content()


def test_close_ends_idle_and_busy_workers() -> None:
    grid = LocalGrid(APP, num_nodes=4, workers=2)
    grid.push_messages([task(1000, "sleep", 60)])
    assert len(multiprocessing.active_children()) == 2
    start = time.monotonic()
    grid.close()
    assert time.monotonic() - start < 50
    assert multiprocessing.active_children() == []
    grid.close()


def test_close_leaves_other_processes_and_descriptors_alone() -> None:
    LocalGrid(APP, num_nodes=1, workers=1).close()  # starts the shared fork server
    before = set(Path("/proc/self/fd").iterdir())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=-1) as other:
        with LocalGrid(APP, num_nodes=1, workers=2) as grid:
            ask(grid, 1000)
        assert other.poll() is None
        other.communicate(b"\n")
    assert other.returncode == 0
    assert set(Path("/proc/self/fd").iterdir()) == before


def test_forgotten_grid_ends_its_workers() -> None:
    grid = LocalGrid(APP, num_nodes=1, workers=1)
    pid = pid_of(grid)
    del grid
    gc.collect()
    assert not is_running(pid)


def test_fork_of_the_caller_leaves_the_workers_alone() -> None:
    with LocalGrid(APP, num_nodes=1, workers=1) as grid:
        pid = pid_of(grid)
        child = os.fork()
        if child == 0:
            grid.close()
            os._exit(0)
        os.waitpid(child, 0)
        assert is_running(pid)
        assert pid_of(grid) == pid


def test_failed_start_leaves_nothing() -> None:
    from grid_apps import exit_at_once

    with pytest.raises(RunError, match="exit code 7 while it loaded the ClientApp"):
        LocalGrid(exit_at_once, num_nodes=1, workers=2)
    with pytest.raises(ConfigError, match="cannot be sent to a worker: "):
        LocalGrid(lambda: ClientApp(), num_nodes=1, workers=2)
    assert multiprocessing.active_children() == []


def unlucky(folder: Path, fatal: range) -> Callable[[], ClientApp]:
    from grid_apps import make_unlucky_app

    starts = folder / "starts"
    starts.touch()
    return functools.partial(make_unlucky_app, starts, fatal)


SHORT_OF = """
import os, resource, sys
from flwr_asyncdrop import LocalGrid
from flwr_asyncdrop.exceptions import RunError

if __name__ == "__main__":
    if sys.argv[1] == "files":
        files = len(os.listdir("/proc/self/fd")) + int(sys.argv[2])
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    try:
        LocalGrid("none:app", num_nodes=8, workers=8)
    except RunError as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("short_of", "reason"),
    [
        (("files", "10"), "Too many open files"),
        nightly(("files", "20"), "Too many open files"),
        (("path", ""), "AF_UNIX path too long"),
    ],
)
def test_what_a_system_has_too_little_of_is_said(
    tmp_path: Path, short_of: tuple[str, str], reason: str
) -> None:
    temporary = tmp_path / "folder".ljust(99, "x")
    temporary.mkdir()
    folder = {"TMPDIR": str(temporary)} if short_of[0] == "path" else {}
    (tmp_path / "script.py").write_text(SHORT_OF)
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py", *short_of],
        env={**os.environ, **folder},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert f"no worker process can be started ({reason}): start" in done.stdout


def test_successor_that_is_killed_at_its_start_is_replaced_with_its_tasks(
    tmp_path: Path,
) -> None:
    with LocalGrid(unlucky(tmp_path, range(1, 4)), num_nodes=3, workers=1) as grid:
        actions = ["kill", "tally", "tally"]
        nodes = grid.get_node_ids()
        messages = [task(n, a, 5) for n, a in zip(nodes, actions, strict=True)]
        replies = grid.send_and_receive(messages)
        assert [reply.has_content() for reply in replies].count(True) == 2
        assert (tmp_path / "starts").read_text() == "|||||"
        # It may happen again: successes in between count.
        assert ask(grid, 1000, "kill").has_error()
        assert ask(grid, 1001).has_content()


def test_successors_that_never_start_are_an_error(tmp_path: Path) -> None:
    with LocalGrid(unlucky(tmp_path, range(1, 99)), num_nodes=2, workers=1) as grid:
        assert ask(grid, 1000, "kill").has_error()
        with pytest.raises(RunError, match=r"SIGKILL.* while it loaded"):
            ask(grid, 1001)
    assert (tmp_path / "starts").read_text() == "|||||"


def test_system_without_fork_server_is_told_of_workers_0(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    with pytest.raises(ConfigError, match="use workers=0"):
        LocalGrid(APP, num_nodes=1, workers=1)
    LocalGrid(APP, num_nodes=1, workers=0).close()


SCRIPT = """\
import os, signal, sys, time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr_asyncdrop.simulation import LocalGrid, worker_pool
from flwr_asyncdrop.simulation.local_grid import MOST_WORKERS
from flwr_asyncdrop.simulation.worker import serve

def task(action, number=0):
    content = RecordDict({{"task": ConfigRecord({{"number": number}})}})
    return Message(content, 1000, "train." + action)

if __name__ == "__main__":
    # A process started in the background ignores interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, {apps!r})
    grid = LocalGrid("grid_apps:app", num_nodes=1, workers=1)
    (reply,) = grid.send_and_receive([task("describe")])
    ids = grid.push_messages([task("sleep", 0.4)])
    time.sleep(0.1)
    try:
        os.killpg(0, signal.SIGINT)
        grid.wait_any(ids)
    except KeyboardInterrupt:
        print("interrupted")
    grid.wait_any(ids)
    (later,) = grid.pull_messages(ids)
    print(later.has_content(), reply.content["facts"]["pid"], flush=True)
    grid.push_messages([task("sleep", 60)])
    time.sleep(0.1)
    {ending}
"""


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        nightly("sys.exit(5)", 5),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_busy_worker_outlives_an_interrupt_and_not_its_parent(
    tmp_path: Path, ending: str, code: int
) -> None:
    script = tmp_path / "script.py"
    apps = str(Path(__file__).parent / "apps")
    script.write_text(SCRIPT.format(apps=apps, ending=ending))
    # Returns when the fork server and the workers have ended as well: until then they
    # hold the pipes open.
    result = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", str(script)],
        capture_output=True,
        text=True,
        timeout=600,
        start_new_session=True,
    )
    assert result.stderr == ""
    assert result.returncode == code
    interrupted, has_content, pid = result.stdout.split()
    assert (interrupted, has_content) == ("interrupted", "True")
    assert not is_running(int(pid))


def test_answers_that_nobody_reads_are_no_traceback() -> None:
    # As when the grid's process is killed; here it goes on, so nothing else ends it.
    channel, far_end = socket.socketpair()
    arguments = (far_end, [], pickle.dumps(APP), 1, "")
    with channel, far_end:
        process = multiprocessing.get_context("forkserver").Process(
            target=serve, args=arguments
        )
        process.start()
        assert select.select([channel], [], [], 300)[0]  # it is ready, and says so
    process.join(300)
    assert process.exitcode == 0


def drawn(seed: int, workers: int) -> list[list[float]]:
    """Return what each of two tasks a node draws, by its node and place."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        with LocalGrid(APP, num_nodes=4, workers=workers) as grid:
            nodes = grid.get_node_ids() * 2
            ids = grid.push_messages(task(node, "draw") for node in nodes)
            for each in ids:
                grid.wait_any([each])
            replies = grid.pull_messages(ids)
    return [list(reply.content["drawn"]["numbers"]) for reply in replies]


def test_each_task_draws_numbers_of_its_own_wherever_it_runs() -> None:
    one, two, here, other = drawn(5, 1), drawn(5, 2), drawn(5, 0), drawn(6, 2)
    for numbers in zip(*two, strict=True):  # of one generator
        assert len(set(numbers)) == 8
    assert one == two == here
    assert all(a != b for a, b in zip(two, other, strict=True))
