"""What the benchmark of a whole simulation compares with is what it says."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from benchmarks.bare import FloatData, bare_loop
from benchmarks.synthetic import write_fashion_mnist
from benchmarks.usage import resident_bytes, usage_of
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.models import build_model
from flwr_asyncdrop.app.training import LocalTraining
from flwr_asyncdrop.objectives import LocalSteps, LocalTask


def digits_model():
    return build_model("mlp", (1, 8, 8), 10, seed=0)


def test_the_bare_loop_takes_the_same_steps():
    data = load_dataset("digits")
    config = RunConfig(
        num_rounds=1, in_flight=1, local_steps=4, hyperparameters={"alpha": 1.0}
    )
    share = np.arange(300, 400)
    bare, ours = digits_model(), digits_model()
    torch.manual_seed(3)
    bare_loop(bare, FloatData.of(data), [share], config)
    LocalTraining(4, config.batch_size, config.lr, config.momentum).train(
        ours,
        LocalSteps(LocalTask(ours, F.cross_entropy)),
        lambda positions: data.batch("train", share[positions]),
        len(share),
        torch.Generator().manual_seed(3),
    )
    for one, other in zip(bare.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_the_bare_loop_returns_the_last_accuracy():
    data = load_dataset("digits")
    config = RunConfig(num_rounds=4, in_flight=5, local_steps=20)
    shares = np.array_split(np.arange(len(data.train_y)), 5)
    assert bare_loop(digits_model(), FloatData.of(data), shares, config) > 0.8


def test_cpu_seconds_of_a_process_that_has_ended_count():
    code = "import time\nwhile time.process_time() < 0.3: pass"
    usage = usage_of(lambda: subprocess.run([sys.executable, "-c", code], check=True))
    assert 0.25 < usage.cpu < usage.wall + 0.2


def test_memory_that_a_child_takes_counts():
    code = "block = b'1' * 100_000_000; print(flush=True); input()"
    before = resident_bytes()
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert resident_bytes() - before > 90_000_000
        child.communicate(b"\n")


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    write_fashion_mnist(root)
    return load_dataset("fashion-mnist", root)


def test_random_images_load_as_fashion_mnist_does(synthetic):
    assert synthetic.train_x.shape == (60_000, 1, 28, 28)
    assert synthetic.test_x.shape == (10_000, 1, 28, 28)
    assert synthetic.train_y.unique().tolist() == list(range(10))
