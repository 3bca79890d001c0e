"""``asyncdrop supernode`` in a real deployment: quick, and the same as without it."""

import sys
import time
from pathlib import Path

import psutil
import pytest
from safetensors.numpy import load_file

from benchmarks.chaos.deployment import Deployment
from benchmarks.edge.server import read_answers
from tests.nightly import by_night
from tests.processes import superlink_starts

pytestmark = superlink_starts

ROOT = Path(__file__).parents[2]
APP = ROOT / "benchmarks" / "edge" / "app"
PLAIN = ("flower-supernode",)
WARM = (sys.executable, "-m", "flwr_asyncdrop", "supernode")
PATIENCE = 400.0
TASKS = 10


def deploy(folder, command):
    folder.mkdir()
    return Deployment(folder, 1, supernodes=[command], PYTHONPATH=str(ROOT))


def trainer_of(deployment):
    """The trainer of the only SuperNode, once there is one."""
    node = psutil.Process(deployment.nodes[0].pid)
    trainers = (p for p in node.children() if any("trainer" in a for a in p.cmdline()))
    return next(trainers, None)


def wait_for(condition, deployment):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, deployment.logs()
        time.sleep(0.1)
    return found


@pytest.mark.e2e
def test_tasks_are_the_trainers_until_it_is_killed_and_again_when_it_is_back(tmp_path):
    output = tmp_path / "answers"
    with deploy(tmp_path / "flower", WARM) as deployment:
        first = wait_for(lambda: trainer_of(deployment), deployment)
        wait_for(lambda: is_preloaded(first), deployment)
        run = deployment.run(APP, output=str(output), nodes=1, blocks=1, tasks=TASKS)
        wait_for(lambda: len(read_answers(output)) >= 2, deployment)
        first.kill()
        run.wait(PATIENCE)
        second = trainer_of(deployment)
        logs = deployment.logs()
    answers = read_answers(output)
    assert [answer.number for answer in answers] == list(range(TASKS)), logs
    assert "the trainer has ended (status -9)" in logs
    assert second is not None
    parents = [answer.parent for answer in answers]
    assert parents[:2] == [first.pid] * 2
    assert parents[-1] == second.pid
    assert len({answer.process for answer in answers}) == TASKS
    assert len({answer.draw for answer in answers}) == TASKS


def is_preloaded(trainer):
    """Whether a trainer takes tasks: it listens only when all is imported."""
    return any(c.status == psutil.CONN_LISTEN or c.laddr for c in listeners(trainer))


def listeners(process):
    return process.net_connections(kind="unix")


@by_night
@pytest.mark.e2e
def test_a_run_on_a_warm_device_ends_with_the_same_model_bit_for_bit(tmp_path):
    models = []
    for name, command in (("plain", PLAIN), ("warm", WARM)):
        out = tmp_path / f"{name}-out"
        with deploy(tmp_path / name, command) as deployment:
            run = deployment.run(
                ROOT,
                **{
                    "clock": "wall",
                    "model": "mlp",
                    "num-rounds": 2,
                    "in-flight": 1,
                    "local-steps": 3,
                    "timeout": 60.0,
                    "out-dir": str(out),
                },
            )
            run.wait(PATIENCE)
            assert (out / "model.safetensors").exists(), deployment.logs()
        models.append(load_file(out / "model.safetensors"))
    plain, warm = models
    assert plain.keys() == warm.keys()
    for key, tensor in plain.items():
        assert tensor.tobytes() == warm[key].tobytes(), key
