"""RayRunner on a Ray of one process; `test_ray_cluster.py` has a real one."""

import logging
import re
import signal
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.exceptions import ConfigError, RunError
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid, RayRunner
from flwr_asyncdrop.simulation.ray import cluster as cluster_module
from flwr_asyncdrop.simulation.ray import fleet as fleet_module
from flwr_asyncdrop.simulation.ray import runner as runner_module
from flwr_asyncdrop.simulation.ray.cluster import (
    connect,
    local_modules,
    most_actors,
    problem_of_address,
)
from flwr_asyncdrop.simulation.ray.head import Head
from flwr_asyncdrop.simulation.ray.node_facts import (
    NodeFacts,
    as_imported,
    code_hash,
    hashes,
)
from tests.simulation.fake_ray import FakeRay, Node

APP, READY = "grid_apps:app", "flwr_asyncdrop.client_app:app"


def task(node, number=0, array=None):
    content = {"task": ConfigRecord({"number": number})}
    if array is not None:
        content["arrays"] = ArrayRecord({"w": Array(array)})
    return Message(RecordDict(content), node, "train.tally")


@pytest.fixture
def use(monkeypatch):
    def install(ray):
        monkeypatch.setattr(runner_module, "connect", lambda _: (ray, False))
        monkeypatch.setattr(
            "flwr_asyncdrop.simulation.ray.actor.require", lambda *_: ray
        )
        monkeypatch.setattr(runner_module, "_INTERVAL", 0.0)
        return ray

    return install


@contextmanager
def grid_on(nodes=4, **options):
    runner = RayRunner(APP, **options)
    with LocalGrid(num_nodes=nodes, runner=runner) as grid:
        yield grid, runner


def numbers(replies):
    return sorted(
        (reply.metadata.src_node_id, reply.content["seen"]["numbers"])
        for reply in replies
    )


def messages(count=5, nodes=4):
    return [task(1000 + node, number=n) for n in range(count) for node in range(nodes)]


EXPECTED = sorted(
    (1000 + node, list(range(n + 1))) for n in range(5) for node in range(4)
)


@pytest.mark.parametrize("actors", [1, 2, 4])
def test_each_call_is_answered_and_contexts_go_on(use, actors):
    use(FakeRay([Node("one"), Node("two")]))
    with grid_on(actors=actors) as (grid, runner):
        assert numbers(grid.send_and_receive(messages())) == EXPECTED
        assert runner.losses == 0


def test_a_reply_that_cannot_be_read_is_an_error_reply(use, monkeypatch):
    use(FakeRay([Node("one")]))

    def unreadable(_):
        raise OSError("not mine")  # as a user's class may where it is unpickled

    with grid_on(actors=1) as (grid, _):
        with monkeypatch.context() as patch:
            patch.setattr(runner_module, "from_parts", unreadable)
            (reply,) = grid.send_and_receive([task(1000)])
        assert reply.error.reason.endswith("cannot be read: OSError: not mine")
        assert numbers(grid.send_and_receive([task(1000)])) == [(1000, [0])]


def test_a_reply_that_cannot_be_sent_is_an_error_reply(use):
    use(FakeRay([Node("one")]))
    message = Message(RecordDict(), 1000, "train.unsendable")
    with grid_on(actors=1) as (grid, _):
        (reply,) = grid.send_and_receive([message])
    reason = r"The ClientApp's reply cannot be sent: \w+Error: [^\n]+"
    assert re.fullmatch(reason, reply.error.reason)


def test_as_many_actors_as_fit_and_less_of_them_side_by_side(use):
    for share, expected in ((1, 5), (2, 2), (9, 1)):
        ray = use(FakeRay([Node("one", 3), Node("two", 2), Node("x", 9, alive=False)]))
        with grid_on(share=share):
            assert len(ray.handles) == expected
        assert all(handle.is_dead for handle in ray.handles)


def test_an_actor_has_one_call_and_the_next_and_the_grid_keeps_the_others(use):
    use(FakeRay([Node("one"), Node("two")]))
    for actors in (1, 2):
        with grid_on(actors=actors) as (grid, runner):
            assert runner.has_room
            grid.push_messages(messages(count=2))
            assert not runner.has_room
            assert len(runner._running) == 2 * actors
            assert not runner._waiting


def test_lost_calls_run_again_are_counted_and_blame_nobody(use, caplog):
    left = iter([False, True, False, False, True, True] + 100 * [False])
    ray = use(FakeRay([Node("one"), Node("two")], lose=lambda _: next(left)))
    with grid_on(actors=3) as (grid, runner):
        assert numbers(grid.send_and_receive(messages())) == EXPECTED
        # Those that waited behind the one that ran are lost with it.
        assert runner.losses >= 3
    lost = f"lost with 3 actors, and run again: {runner.losses} tasks"
    assert lost in caplog.text
    assert len(ray.handles) == 6


def test_a_lost_call_draws_the_same_numbers_when_it_runs_again(use):
    def drawn(grid):
        message = Message(RecordDict({"task": ConfigRecord()}), 1000, "train.draw")
        (reply,) = grid.send_and_receive([message])
        return list(reply.content["drawn"]["numbers"])

    left = iter([True, False])
    use(FakeRay([Node("one")], lose=lambda _: next(left)))
    with grid_on() as (grid, runner), LocalGrid(APP, num_nodes=1) as other:
        assert drawn(grid) == drawn(other)
        assert runner.losses == 1


def test_a_node_that_leaves_and_one_that_joins(use):
    leaving, staying = Node("leaving"), Node("staying", room=1)
    ray = use(FakeRay([leaving, staying]))
    with grid_on(actors=2) as (grid, _):
        grid.send_and_receive(messages(1))
        leaving.alive = False
        ray.node_list.append(Node("joining"))
        assert len(grid.send_and_receive(messages(4))) == 16
    assert {name for _, name in ray.calls[-10:]} == {"staying", "joining"}


def test_retries_that_run_out_end_the_run_with_the_cause(use):
    use(FakeRay([Node("one")], lose=lambda _: True))
    with (
        grid_on(actors=1, retries=2) as (grid, _),
        pytest.raises(RunError, match=r"a task was lost 3 times") as caught,
    ):
        grid.send_and_receive([task(1000)])
    assert socket.gethostname() in str(caught.value)
    assert str(caught.value).endswith("RayError: The actor died unexpectedly.")


def test_no_actor_for_a_time_ends_the_run(use):
    node = Node("one")
    use(FakeRay([node]))
    with grid_on(actors=1, patience=0.2) as (grid, _):
        node.alive = False
        with pytest.raises(
            RunError, match=r"no Ray actor has been there for 0\.2 s: an"
        ):
            grid.send_and_receive([task(1000)])


def test_actors_that_cannot_start_are_started_ever_more_rarely(use, monkeypatch):
    rounds = []

    class Counted(RayRunner):
        def collect(self, timeout):
            rounds.append(timeout)
            return super().collect(timeout)

    ray = use(FakeRay([Node("one")], stillborn=True))
    monkeypatch.setattr(runner_module, "_INTERVAL", 1.0)
    with pytest.raises(
        RunError, match=r"an actor could not be started \(RayError: The"
    ):
        Counted(APP, actors=1, patience=2.0)
    # At once, after 0.5 s, and 1 s later.
    assert len(ray.handles) == 3
    # It sleeps in between: 2 s are 40 pauses.
    assert len(rounds) <= 40 + 2 * len(ray.handles)


def test_no_room_from_the_start_says_what_was_asked_for(use):
    use(FakeRay([Node("one", room=0)]))
    with pytest.raises(RunError, match=r"has no room for one \(2 CPU, 0.5 GPU each\)"):
        RayRunner(APP, actors=1, cpus_per_actor=2, gpus_per_actor=0.5, patience=0.05)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (Node("one", room=0), "the cluster has no room for one (1 CPU, 0 GPU each)"),
        (Node("one", alive=False), "the cluster has no room for one"),
        (Node("one", room=1, busy=1), "its nodes are busy, or slow to start one (1"),
    ],
)
def test_what_is_waited_for_is_said_once_long_before_the_end(
    use, monkeypatch, caplog, node, why
):
    monkeypatch.setattr(fleet_module, "_SILENCE", 0.01)
    use(FakeRay([node]))
    with pytest.raises(RunError, match=re.escape(why)):
        RayRunner(APP, actors=1, patience=0.2)
    (warning,) = [each for each in caplog.messages if "no actor for" in each]
    assert "the run ends after 0.2 s" in warning
    assert why in warning


class KillAt(Callback):
    """Does something after so many updates."""

    def __init__(self, updates, action):
        self.updates = updates
        self.action = action

    def on_update(self, state, merged):
        if state.updates == self.updates:
            self.action()


def test_a_run_without_actors_ends_saved_and_resumes_as_if_nothing_had_been(
    use, tmp_path
):
    settings = {
        "num-rounds": 3,
        "in-flight": 3,
        "levels": 3,
        "local-steps": 2,
        "model": "mlp",
        "checkpoint-every": 1,
        "algo": "fedbuff",
    }

    def run(name, grid, callbacks=(), **more):
        out = tmp_path / name
        told = {**settings, **more, "out-dir": str(out)}
        with grid:
            run_experiment(grid, RunConfig.parse(told), callbacks)
        return [without_wall(line) for line in read_history(out / "history.jsonl")]

    def local():
        return LocalGrid(READY, num_nodes=6, workers=0, run_config=settings)

    node = Node("one")
    use(FakeRay([node]))
    runner = RayRunner(READY, actors=2, patience=0.1)
    on_ray = LocalGrid(num_nodes=6, run_config=settings, runner=runner)
    leave = KillAt(5, lambda: setattr(node, "alive", False))
    with pytest.raises(RunError, match="no Ray actor has been there"):
        run("ray", on_ray, [leave])
    resumed = run("ray", local(), resume=str(tmp_path / "ray"))
    assert resumed[-1]["updates"] == 9
    expected = run("local", local())
    assert [each for each in resumed if each["event"] != "resume"] == expected


class TestANodeThatDiffers:
    @pytest.fixture
    def fingerprint(self, monkeypatch):
        """Return what a fake node has; a function of a module is pickled by name."""
        module = runner_module
        holder = {}

        def data():
            node = holder["ray"].current
            return {"data set digits": node.data if node else "same"}

        data.__module__, data.__qualname__ = module.__name__, "data_of_tests"
        monkeypatch.setattr(module, "data_of_tests", data, raising=False)
        return data, holder

    def test_is_refused_by_name_and_the_others_go_on(self, use, fingerprint, caplog):
        data, holder = fingerprint
        ray = holder["ray"] = use(FakeRay([Node("bad", data="other"), Node("good")]))
        with grid_on(actors=2, fingerprint=data) as (grid, _):
            assert numbers(grid.send_and_receive(messages())) == EXPECTED
        assert {name for method, name in ray.calls if method == "run"} == {"good"}
        (warning,) = (
            r.getMessage()
            for r in caplog.records
            if "refus" in r.getMessage() or "differs" in r.getMessage()
        )
        assert warning == (
            f"Ray: {socket.gethostname()} differs: data set digits other there and "
            "same here; the node is not used"
        )

    def test_all_nodes_refused_is_an_error_at_once(self, use, fingerprint):
        data, holder = fingerprint
        holder["ray"] = use(FakeRay([Node("bad", data="other")]))
        with pytest.raises(
            ConfigError, match=r"no node that could be used: .* differs"
        ):
            RayRunner(APP, actors=2, fingerprint=data)

    def test_a_head_that_is_silent_is_not_asked_what_other_nodes_there_are(
        self, use, fingerprint, monkeypatch
    ):
        """Ray would wait a minute for it, and then end the process."""

        def nodes():
            raise AssertionError("Ray was asked")

        data, holder = fingerprint
        good = Node("good")
        ray = holder["ray"] = use(FakeRay([Node("bad", room=1, data="other"), good]))
        with grid_on(actors=2, fingerprint=data) as (_, runner):
            runner.collect(0.0)
            assert runner._fleet.has_refused
            monkeypatch.setattr(ray, "nodes", nodes)
            runner._fleet._head.is_silent = True
            for actor in [*runner._fleet.ready]:
                runner._fleet.lose(actor, RuntimeError("The node died."))
            assert runner.collect(0.0) == []

    def test_one_on_which_the_client_app_fails(self, use, monkeypatch):
        use(FakeRay([Node("bad")]))
        monkeypatch.setattr(
            "flwr_asyncdrop.simulation.ray.actor.load_client_app",
            lambda _: (_ for _ in ()).throw(ConfigError("no module named my_app")),
        )
        with pytest.raises(ConfigError, match="cannot be prepared: no module named my"):
            RayRunner(APP, actors=1)


def test_a_head_that_has_gone_with_an_actor_is_not_asked_to_end_it(use):
    """Ray would wait a minute for it, and then end the process."""
    ray = use(FakeRay([Node("one")]))
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        grid_on(actors=1) as (_, runner),
    ):
        fleet = runner._fleet
        head = fleet._head = Head(f"127.0.0.1:{server.getsockname()[1]}")
        head.look()
        assert not head.is_silent
        server.close()
        fleet.lose(fleet.ready[0], RuntimeError("The node died."))
        assert head.is_silent
    assert not ray.handles[0].is_dead


def test_a_version_is_put_once_and_not_once_a_call(use):
    ray = use(FakeRay([Node("one")]))
    one, other = (np.full(50_000, n, dtype=np.float32) for n in (1, 2))
    with grid_on(actors=2) as (grid, _):
        grid.send_and_receive([task(1000 + n, array=one.copy()) for n in range(4)])
        assert ray.puts == 1
        grid.send_and_receive([task(1000 + n, array=other) for n in range(4)])
        assert ray.puts == 2
        grid.send_and_receive([task(1000, array=one[:10])])  # too small
        assert ray.puts == 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"actors": -1},
        {"gpus_per_actor": -0.5},
        {"gpus_per_actor": float("nan")},
        {"gpus_per_actor": 1.5},
        {"gpus_per_actor": 1e-6},
        {"cpus_per_actor": 0},
        {"threads": 0},
        {"actors": 1.5},
        {"patience": float("nan")},
        {"address": "ray://host:10001"},
    ],
)
def test_what_is_out_of_range_is_refused(wrong):
    with pytest.raises(ConfigError):
        RayRunner(APP, **wrong)


def test_addresses():
    for right in ("auto", "host:6379", "10.0.0.1:6379", "[::1]:6379"):
        assert problem_of_address(right) == ""
    for wrong in ("", "host", "host:", "http://host:6379", "ray://host:6379", "a b:1"):
        assert "must be auto, or HOST:PORT" in problem_of_address(wrong)


def test_an_address_where_nobody_listens_is_known_at_once():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(RunError, match=f"no Ray cluster answers at 127.0.0.1:{port}"):
        connect(f"127.0.0.1:{port}")


class EndedError(BaseException):
    """What a process raises at SIGTERM."""


@contextmanager
def ended_by_sigterm():
    """Expect that this process's own handler ends what is in the block."""

    def end(number, frame):
        raise EndedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(EndedError):
            yield
        assert signal.getsignal(signal.SIGTERM) is end
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_sigterm_while_ray_connects_is_handled_as_it_always_is(monkeypatch):
    def init(**options):
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
        signal.raise_signal(signal.SIGTERM)

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(cluster_module, "require", lambda *_: ray)
    with ended_by_sigterm():
        connect("auto")


def test_a_sigterm_while_actors_start_is_handled_as_it_always_is(use, monkeypatch):
    ray = use(FakeRay([Node("one")]))
    wait = ray.wait

    def interrupted(*arguments, **options):
        """Ray runs handlers while it waits, and raises its own exit for theirs."""
        try:
            signal.raise_signal(signal.SIGTERM)
        except EndedError:
            raise SystemExit(1) from None
        return wait(*arguments, **options)

    monkeypatch.setattr(ray, "wait", interrupted)
    with ended_by_sigterm():
        RayRunner(APP, actors=1)
    assert all(handle.is_dead for handle in ray.handles)


@pytest.mark.parametrize("address", ["a..b:6379", f"{'a' * 64}:6379"])
def test_an_address_that_can_be_none_is_one_line(address):
    with pytest.raises(RunError, match=f"no Ray cluster answers at {address}"):
        connect(address)


def test_room_counts_what_fits_on_each_node():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 3.0, "GPU": 1.0}},
        {"Alive": True, "Resources": {"CPU": 64.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    assert most_actors(nodes, 1.0, 0.0) == 67
    assert most_actors(nodes, 1.0, 0.25) == 3
    assert most_actors(nodes, 0.5, 0.25) == 4
    assert most_actors(nodes, 0.0, 0.1) == 10


@pytest.mark.parametrize(
    ("share", "fitting"), [(0.4, 4), (0.3, 6), (0.6, 2), (0.5, 4), (1.0, 2), (2.0, 1)]
)
def test_a_share_of_a_gpu_lies_on_one(share, fitting):
    """As Ray has it: two actors of 0.4 leave a fifth of each GPU, where none fits."""
    node = {"Alive": True, "Resources": {"CPU": 64.0, "GPU": 2.0}}
    assert most_actors([node], 1.0, share) == fitting


def test_what_is_imported_from_a_folder_travels_and_what_is_installed_does_not(
    monkeypatch,
):
    __import__("grid_apps")
    script = ModuleType("__mp_main__")  # as multiprocessing calls it
    script.__file__ = str(Path(__file__).parent / "apps" / "grid_apps.py")
    monkeypatch.setitem(sys.modules, "__mp_main__", script)
    found = local_modules()
    assert "__mp_main__" not in found
    assert found["grid_apps"].name == "grid_apps.py"
    assert found["flwr_asyncdrop"].is_dir()
    assert found.keys().isdisjoint({"torch", "numpy", "flwr", "json", "socket"})


def test_code_counts_as_it_was_imported():
    __import__("grid_apps")
    code = hashes(local_modules())
    assert as_imported(code) == code
    edited = {**code, "grid_apps": "0123", "never_imported": "4567"}
    assert as_imported(edited) == {**code, "never_imported": "4567"}
    here = NodeFacts.here()
    assert here.with_code(as_imported(edited)).differences(here.with_code(edited)) == (
        f"module grid_apps code {code['grid_apps']} there and code 0123 here"
    )


def test_what_no_node_is_sent_makes_no_difference(tmp_path):
    (tmp_path / "a.py").write_text("1")
    before = code_hash(tmp_path)
    for name in (".venv", ".git", "__pycache__"):
        (tmp_path / name / "lib").mkdir(parents=True)
        (tmp_path / name / "lib" / "b.py").write_text("2")
    (tmp_path / ".#a.py").symlink_to("user@host.1")  # Emacs locks what it edits
    (tmp_path / "folder.py").mkdir()
    assert code_hash(tmp_path) == before


def test_a_module_whose_file_is_gone_is_not_sent(tmp_path, monkeypatch):
    path = tmp_path / "made_up_and_gone.py"
    path.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    __import__(path.stem)
    assert path.stem in local_modules()
    path.unlink()
    assert path.stem not in local_modules()


@pytest.mark.parametrize("wrong", ["abc", None, ["data"], {1: "abc"}])
def test_a_fingerprint_that_is_no_mapping_is_one_line(wrong):
    with pytest.raises(ConfigError, match="return a mapping of names to texts"):
        NodeFacts.here(lambda: wrong)


def test_what_differs_is_said_in_one_line(tmp_path):
    here = NodeFacts({"torch": "2.13", "flwr": "1.41"}, "x86")
    there = NodeFacts({"torch": "2.12", "flwr": "1.41", "data": "1f"}, "arm")
    assert there.differences(here) == (
        "torch 2.12 there and 2.13 here, data 1f there and absent here"
    )
    assert here.differences(here) == ""
    (tmp_path / "a.py").write_text("1")
    (tmp_path / "b.txt").write_text("1")
    before = code_hash(tmp_path)
    (tmp_path / "b.txt").write_text("2")
    assert code_hash(tmp_path) == before
    (tmp_path / "a.py").write_text("2")
    assert code_hash(tmp_path) != before


@pytest.fixture(autouse=True)
def flower_logs(caplog, monkeypatch):
    """Flower's logger does not pass on what it is told."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
