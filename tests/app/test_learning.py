"""The learning tasks, against what PyTorch computes on all samples at once."""

import math

import pytest
import torch
import torch.nn.functional as F

from flwr_asyncdrop.app import Classification, LearningTask, NextToken, Regression


def draw(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def metrics_of(task, outputs, targets, size=4):
    """Return the metrics of batches of `size`."""
    totals = {}
    for some, wanted in zip(outputs.split(size), targets.split(size), strict=True):
        for name, total in task.totals(some, wanted).items():
            totals[name] = total + totals.get(name, 0)
    return task.metrics(totals)


def test_classification():
    logits, labels = draw(10, 3), torch.arange(10) % 3
    task = Classification(3)
    assert (task.outputs, task.num_classes) == (3, 3)
    metrics = metrics_of(task, logits, labels)
    loss = F.cross_entropy(logits, labels)
    assert torch.equal(task.loss(logits, labels), loss)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert metrics["accuracy"] == (logits.argmax(1) == labels).double().mean().item()


@pytest.mark.parametrize("shape", [(10,), (10, 3)])
def test_regression(shape):
    outputs, targets = draw(10, math.prod(shape[1:])), draw(*shape) + 1
    task = Regression(outputs.shape[1])
    assert (task.outputs, task.num_classes) == (outputs.shape[1], 0)
    errors = outputs.reshape(shape) - targets
    metrics = metrics_of(task, outputs, targets)
    assert task.loss(outputs, targets).item() == pytest.approx(
        errors.square().mean().item()
    )
    assert metrics == {
        "loss": pytest.approx(errors.square().mean().item()),
        "mae": pytest.approx(errors.abs().mean().item()),
    }


def test_next_token():
    logits, tokens = draw(10, 5, 7), torch.arange(50).view(10, 5) % 7
    tokens[2:5, 3:] = -100
    task = NextToken(7)
    assert (task.outputs, task.num_classes) == (0, 0)
    counted = tokens != -100
    loss = F.cross_entropy(logits[counted], tokens[counted]).item()
    right = logits.argmax(2)[counted] == tokens[counted]
    assert task.loss(logits, tokens).item() == pytest.approx(loss)
    assert metrics_of(task, logits, tokens) == {
        "accuracy": pytest.approx(right.double().mean().item()),
        "loss": pytest.approx(loss),
        "perplexity": pytest.approx(math.exp(loss)),
    }


def test_one_with_a_loss_alone_is_judged_by_it():
    class Absolute(LearningTask):
        def loss(self, outputs, targets):
            return F.l1_loss(outputs, targets)

    outputs, targets = draw(10, 2), torch.zeros(10, 2)
    assert metrics_of(Absolute(), outputs, targets) == {
        "loss": pytest.approx(outputs.abs().mean().item())
    }
