import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from flwr_asyncdrop import wire
from flwr_asyncdrop.app import (
    Classification,
    Dataset,
    NextToken,
    Normalise,
    evaluation,
)
from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.evaluation import LEVEL_ACCURACY, CentralTest, evaluate
from flwr_asyncdrop.app.experiment import initial_model, load_data, trained_model
from flwr_asyncdrop.server.state import RunState

TASK = Classification(3)


def data(count):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 1, 2, 2), generator=generator).byte()
    labels = torch.randint(0, 3, (count,), generator=generator)
    # The training images are black, so that no test can take one for the other.
    black = torch.zeros(4, 1, 2, 2, dtype=torch.uint8)
    none = torch.zeros(4, dtype=torch.int64)
    return made_of(black, none, images, labels)


def made_of(*tensors):
    return Dataset(*tensors, Classification(3), Normalise((0.5,), (0.25,)))


def metrics(*arguments, **options):
    return TASK.metrics(evaluate(*arguments, **options))


def network():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 3))


@pytest.mark.parametrize("count", [1, 499, 500, 501, 1203])
def test_batches_together_are_the_whole_test_set(count):
    test_set, model = data(count), network()
    totals = evaluate(model, test_set)
    scores = TASK.metrics(totals)
    inputs = (test_set.test_x.float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        logits = model[2](inputs.flatten(1))
    right = (logits.argmax(1) == test_set.test_y).double()
    assert scores["accuracy"] == pytest.approx(right.mean().item())
    for label, accuracy in enumerate(TASK.class_accuracy(totals).tolist()):
        of_class = right[test_set.test_y == label]
        expected = of_class.mean().item() if len(of_class) else 0.0
        assert accuracy == pytest.approx(expected)
    expected = F.cross_entropy(logits, test_set.test_y).item()
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)


def test_texts_are_evaluated_in_batches_of_so_many_logits(monkeypatch):
    """500 reviews of 200 words would have 4 GB of logits, and as much of their loss."""
    monkeypatch.setattr(evaluation, "_MOST_LOGITS", 5 * 3 * 4 + 1)
    texts = torch.arange(36).reshape(12, 3) % 4
    made = Dataset(texts, texts, texts, texts, NextToken(4), vocabulary=4)
    model, sizes = nn.Embedding(4, 4), []
    model.register_forward_hook(lambda _, inputs, __: sizes.append(len(inputs[0])))
    totals = evaluate(model, made)
    assert sizes == [5, 5, 2]
    whole = F.cross_entropy(model(texts).flatten(0, 1), texts.flatten()).item()
    assert made.task.metrics(totals)["loss"] == pytest.approx(whole)


def test_some_of_the_training_samples():
    made, model = data(5), network()
    swapped = made_of(made.test_x, made.test_y, made.train_x, made.train_y)
    samples = np.array([4, 0, 2])
    scores = metrics(model, swapped, split="train", samples=samples)
    inputs = (made.test_x[samples].float() / 255 - 0.5) / 0.25
    with torch.no_grad():
        logits = model[2](inputs.flatten(1))
    labels = made.test_y[samples]
    right = (logits.argmax(1) == labels).double().mean().item()
    assert scores["accuracy"] == pytest.approx(right)
    expected = F.cross_entropy(logits, labels).item()
    assert scores["loss"] == pytest.approx(expected, rel=1e-5)


def test_precision():
    made, model = data(300), network()
    full = metrics(model, made)
    low = metrics(model, made, "bfloat16")
    assert low["loss"] != full["loss"]
    assert low["loss"] == pytest.approx(full["loss"], rel=0.02)


def test_no_gradients_are_kept():
    model = network()
    evaluate(model, data(5))
    assert not model.training
    assert all(parameter.grad is None for parameter in model.parameters())


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


def test_labels_that_are_not_tested_do_not_count_as_wrong():
    config = RunConfig(model="mlp", levels=4, threads=1, test_samples=1)
    label = int(load_data(config).test_y)
    levels = metrics_of(config, one_class_model(config, label))[LEVEL_ACCURACY]
    assert len(levels) == 4
    assert {level for level in levels if not np.isnan(level)} == {1.0}


def test_without_a_tie_of_labels_and_speed_there_is_one_accuracy():
    config = RunConfig(model="mlp", partition="iid", threads=1)
    arrays = initial_model(config).state_dict()
    metrics = metrics_of(config, arrays)
    data = load_data(config)
    totals = evaluate(trained_model(config, arrays), data)
    assert dict(metrics) == data.task.metrics(totals)
    assert list(metrics) == ["accuracy", "loss"]
