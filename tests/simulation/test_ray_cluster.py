"""RayRunner on a real cluster of raylets on this machine."""

import itertools
import logging
import os
import queue
import signal
import socket
import threading
import time
from contextlib import suppress

import psutil
import pytest
from safetensors.torch import load_file

from benchmarks.ray_nodes import RayNodes
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.server import run_experiment
from flwr_asyncdrop.cli.backend import Backend
from flwr_asyncdrop.cli.runs import RunSpec
from flwr_asyncdrop.exceptions import RunError
from flwr_asyncdrop.observers.history_reading import read_history, without_wall
from flwr_asyncdrop.readable import counted
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid, RayRunner
from tests.nightly import nightly
from tests.processes import ray_starts

pytest.importorskip("ray")
pytestmark = [pytest.mark.e2e, ray_starts]

NODES = 8
MARK = "ASYNCDROP_TEST_NODE"
AT_WORK = "CallActor.run"  # in the title that Ray gives the process meanwhile
SETTINGS = {
    "algo": "hetero-asyncdrop",
    "model": "mlp",
    "num-rounds": 3,
    "in-flight": 6,
    "levels": 4,
    "local-steps": 200,
    "codec": "topk-q4",  # whose residuals lie in the nodes' contexts
}


def mark_of_node():
    return {"mark": os.environ.get(MARK, "")}


def run_on(backend, out, callbacks=(), **settings):
    told = {**SETTINGS, **settings, "out-dir": str(out)}
    spec = RunSpec("run", out, told, NODES)
    with backend.open(spec) as grid:
        while getattr(grid._runner, "num_actors", 0) < backend.actors:
            assert grid._runner.collect(0.1) == []
        run_experiment(grid, RunConfig.parse(told), callbacks)
    history = [without_wall(line) for line in read_history(out / "history.jsonl")]
    model = load_file(out / "model.safetensors")
    losses = getattr(grid._runner, "losses", 0)
    return history, {name: tensor.tolist() for name, tensor in model.items()}, losses


class Chaos(Callback):
    """Kills an actor at work, or its node unless that is the head, every few updates.

    It has a thread of its own: while an update is merged, all actors may be idle.
    """

    def __init__(self, cluster, every, choices):
        self.cluster = cluster
        self.every = every
        self.choices = itertools.cycle(choices)
        self.kills = []
        self.due = queue.SimpleQueue()
        self.has_ended = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.has_ended.set()
        self.due.put(None)
        self.thread.join()

    def on_update(self, state, merged):
        if state.updates % self.every == 0:
            self.due.put(next(self.choices))

    def work(self):
        while what := self.due.get():
            kill = self.kill_actor if what == "actor" else self.kill_raylet
            while not (killed := kill()) and not self.has_ended.is_set():
                time.sleep(0.01)
            if killed:
                self.kills.append(what)
            if what == "raylet_and_join":
                self.cluster.add(wait=False)

    def kill_actor(self):
        return any(kill(p) for node in self.cluster.nodes for p in working(node))

    def kill_raylet(self):
        nodes = [(node, node.raylet) for node in self.cluster.nodes[1:]]
        nodes = [(node, raylet) for node, raylet in nodes if raylet]
        # Ray may have put all actors on the head.
        idle = not any(node.actors for node, _ in nodes)
        return any(kill(raylet) for node, raylet in nodes if idle or working(node))


def working(node):
    with suppress(psutil.NoSuchProcess):
        return [process for process in node.actors if AT_WORK in process.name()]
    return []


def kill(process):
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGKILL)
        return True
    return False


@pytest.fixture
def cluster():
    # Nothing but Ray is known there: the code has to travel.
    with RayNodes(2, {"PYTHONPATH": ""}) as nodes:
        yield nodes


def test_an_actor_and_a_node_are_killed_and_the_bits_are_the_same(
    cluster, tmp_path, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    history, model, _ = run_on(Backend(), tmp_path / "local")
    backend = Backend(address=cluster.address, actors=2)
    with Chaos(cluster, every=6, choices=("actor", "raylet")) as chaos:
        again = run_on(backend, tmp_path / "ray", [chaos])
    assert again[:2] == (history, model)
    assert chaos.kills[:2] == ["actor", "raylet"]
    assert again[2] >= 1
    assert f"and run again: {counted(again[2], 'task')}" in caplog.text
    assert history[-1]["failures"] == {}


@pytest.mark.parametrize("actors", [nightly(1), nightly(2), nightly(4)])
def test_killed_at_random_ten_times_and_more(cluster, tmp_path, actors):
    rounds = {"num-rounds": 14}
    expected = run_on(Backend(), tmp_path / "local", **rounds)
    choices = ("actor", "actor", "raylet_and_join", "actor")
    backend = Backend(address=cluster.address, actors=actors)
    with Chaos(cluster, every=6, choices=choices) as chaos:
        found = run_on(backend, tmp_path / "ray", [chaos], **rounds)
    assert found[:2] == expected[:2]
    assert len(chaos.kills) >= 10
    assert found[2] >= 5


@pytest.mark.parametrize("count", [nightly(2)])
def test_a_node_that_differs_is_refused_by_name(count, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    with RayNodes(1, {"PYTHONPATH": ""}) as cluster:
        cluster.add(**{MARK: "other"})
        runner = RayRunner(
            "grid_apps:app",
            address=cluster.address,
            actors=count,
            fingerprint=mark_of_node,
        )
        with LocalGrid(num_nodes=4, runner=runner):
            end = time.monotonic() + 120
            while "is not used" not in caplog.text and time.monotonic() < end:
                runner.collect(0.2)
            assert runner.num_actors >= 1
    name = socket.gethostname()
    assert f"{name} differs: mark other there and  here; the node" in caplog.text


@pytest.mark.parametrize("actors", [nightly(2)])
def test_a_run_whose_head_is_killed_ends_with_the_cause_and_goes_on(tmp_path, actors):
    class KillHead(Callback):
        def on_update(self, state, merged):
            if state.updates == 6:
                for process in cluster.nodes[0].family:
                    with suppress(psutil.NoSuchProcess):
                        process.kill()

    # Longer than a head may be silent.
    often = {"checkpoint-every": 1, "codec": "q4", "num-rounds": 30, "local-steps": 800}
    expected = run_on(Backend(), tmp_path / "local", **often, overwrite=True)
    out = tmp_path / "ray"
    with RayNodes(2, {"PYTHONPATH": ""}) as cluster:
        backend = Backend(address=cluster.address, actors=actors)
        with pytest.raises(RunError, match=r"head of the Ray cluster .* is gone"):
            run_on(backend, out, [KillHead()], **often)
    found = run_on(Backend(), out, **often, resume=str(out))
    assert found[:2] == expected[:2]
