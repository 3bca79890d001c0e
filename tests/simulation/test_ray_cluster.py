"""RayRunner on a real cluster of raylets on this machine."""

import logging
import os
import random
import signal
import socket
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
from flwr_asyncdrop.server.callbacks import Callback
from flwr_asyncdrop.simulation import LocalGrid, RayRunner
from tests.nightly import nightly
from tests.processes import ray_starts

pytest.importorskip("ray")
pytestmark = [pytest.mark.e2e, ray_starts]

NODES = 8
MARK = "ASYNCDROP_TEST_NODE"
SETTINGS = {
    "algo": "hetero-asyncdrop",
    "model": "mlp",
    "num-rounds": 3,
    "in-flight": 6,
    "levels": 4,
    "local-steps": 40,
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
    """Kills an actor, or a node but the head, every so many updates."""

    def __init__(self, cluster, every, choices, seed=0):
        self.cluster = cluster
        self.every = every
        self.choices = choices
        self.generator = random.Random(seed)  # noqa: S311
        self.kills = []

    def on_update(self, state, merged):
        if state.updates % self.every:
            return
        what = self.choices[len(self.kills) % len(self.choices)]
        getattr(self, what)()

    def actor(self):
        found = [p for node in self.cluster.nodes for p in node.actors]
        if found:
            self._kill(self.generator.choice(found), "actor")

    def raylet(self):
        found = [node.raylet for node in self.cluster.nodes[1:] if node.raylet]
        if found:
            self._kill(self.generator.choice(found), "raylet")

    def raylet_and_join(self):
        self.raylet()
        self.cluster.add(wait=False)

    def _kill(self, process, what):
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
            self.kills.append(what)


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
    chaos = Chaos(cluster, every=6, choices=("actor", "raylet"))
    backend = Backend(address=cluster.address, actors=2)
    again = run_on(backend, tmp_path / "ray", [chaos])
    assert again[:2] == (history, model)
    assert chaos.kills[:2] == ["actor", "raylet"]
    assert again[2] >= 1
    assert f"{again[2]} tasks were lost" in caplog.text
    assert history[-1]["failures"] == {}


@pytest.mark.parametrize("actors", [nightly(1), nightly(2), nightly(4)])
def test_killed_at_random_ten_times_and_more(cluster, tmp_path, actors):
    rounds = {"num-rounds": 14}
    expected = run_on(Backend(), tmp_path / "local", **rounds)
    choices = ("actor", "actor", "raylet_and_join", "actor")
    chaos = Chaos(cluster, every=6, choices=choices, seed=actors)
    backend = Backend(address=cluster.address, actors=actors)
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
