import numpy as np
import pytest
import torch

from flwr_asyncdrop import wire
from flwr_asyncdrop.app.central_evaluation import LEVEL_ACCURACY, CentralTest
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.evaluate import evaluate
from flwr_asyncdrop.app.experiment import initial_model, load_data, trained_model
from flwr_asyncdrop.server.state import RunState


def one_class_model(config, label):
    """Return the weights of a model whose answer is always `label`."""
    state = initial_model(config).state_dict()
    state = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    last = list(state)[-1]
    state[last][label] = 1.0
    return state


def metrics_of(config, arrays, devices=16):
    test = CentralTest(config)
    state = RunState.start_from(arrays, seed=0)
    state.num_devices = devices
    test.on_start(state)
    return test(0, wire.to_record(arrays))


@pytest.mark.parametrize("devices", [16, 3])
def test_levels_that_have_a_label_see_the_model_that_knows_only_it(devices):
    config = RunConfig(model="mlp", levels=4, threads=1)
    metrics = metrics_of(config, one_class_model(config, 7), devices)
    levels = metrics[LEVEL_ACCURACY]
    assert len(levels) == min(4, devices)
    labels = load_data(config).train_y
    # All of a label's samples lie in the pools, which are of one size.
    assert np.mean(levels) == pytest.approx(
        (labels == 7).double().mean().item(), abs=1e-3
    )
    assert min(levels) == 0.0
    assert metrics["accuracy"] == pytest.approx(0.1, abs=0.01)


def test_without_a_tie_of_labels_and_speed_there_is_one_accuracy():
    config = RunConfig(model="mlp", partition="iid", threads=1)
    arrays = initial_model(config).state_dict()
    metrics = metrics_of(config, arrays)
    data = load_data(config)
    totals = evaluate(trained_model(config, arrays), data)
    assert dict(metrics) == data.task.metrics(totals)
    assert list(metrics) == ["accuracy", "loss"]
