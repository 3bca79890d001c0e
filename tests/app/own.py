"""Data sets, models and an algorithm as a user's own package has them."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from flwr_asyncdrop.aggregation import Mixing
from flwr_asyncdrop.algorithms import Algorithm
from flwr_asyncdrop.app import Classification, Dataset, NextToken, Regression
from flwr_asyncdrop.fleet import Selection
from flwr_asyncdrop.objectives import LocalObjective, LocalSteps

APP = "flwr_asyncdrop.client_app:app"
# A run of a second, on the plane.
TINY = {
    "dataset": "tests.app.own:plane",
    "model": "tests.app.own:perceptron",
    "algo": "async-fedavg",
    "partition": "iid",
    "local-steps": 1,
    "lr": 0.01,
    "in-flight": 2,
    "levels": 1,
    "speed-ratio": 1.0,
    "step-seconds": 1.0,
}


def plane(path):
    """Return points of a noisy plane in four dimensions."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 4, generator=generator)
    y = x @ torch.tensor([1.0, -2.0, 0.5, 3.0]) + 1
    y += 0.01 * torch.randn(300, generator=generator)
    return Dataset(x[:240], y[:240], x[240:], y[240:], Regression())


def doubles(path):
    """Return the plane in NumPy's precision, which the models do not have."""
    data = plane(path)
    return replace(data, train_x=data.train_x.double(), test_x=data.test_x.double())


def pairs(path):
    """Return two numbers a sample for a task that has one."""
    data = plane(path)
    train_y, test_y = (torch.stack([y, y], 1) for y in (data.train_y, data.test_y))
    return replace(data, train_y=train_y, test_y=test_y)


def wider(path):
    """Return test inputs with a column more than the training inputs."""
    data = plane(path)
    return replace(data, test_x=data.test_x.repeat(1, 2)[:, :5])


class Judged(Regression):
    def metrics(self, totals):
        mae = totals["mae"] / totals["count"]
        return {"loss": np.float32(totals["loss"]), "mae": mae}


class ListJudged(Regression):
    def metrics(self, totals):
        return {"loss": [[1.0]]}


class ErrorJudged(Regression):
    def metrics(self, totals):
        return {"loss": totals["mse"]}


def judged(path):
    return replace(plane(path), task=Judged())


def judged_by_a_list(path):
    return replace(plane(path), task=ListJudged())


def judged_by_an_error(path):
    return replace(plane(path), task=ErrorJudged())


def three_sides(path):
    """Return a last label that a model of one output has not, behind others."""
    data, labels = plane(path), torch.zeros(300, dtype=torch.int64)
    labels[-1] = 2
    task = Classification(3)
    return replace(data, train_y=labels[:240], test_y=labels[240:], task=task)


def perceptron(dataset, width):
    units = round(16 * width)
    return nn.Sequential(
        nn.Linear(*dataset.input_shape, units), nn.ReLU(), nn.Linear(units, 1)
    )


def counting(path):
    """Return texts in which every token is the one before plus one, modulo seven."""
    starts = torch.arange(140)[:, None] % 7
    tokens = (starts + torch.arange(9)) % 7
    x, y = tokens[:, :-1].to(torch.int16), tokens[:, 1:]
    return Dataset(
        x[:105], y[:105], x[105:], y[105:], NextToken(7), to_int64, vocabulary=7
    )


def to_int64(tokens):
    return tokens.to(torch.int64)


def reader(dataset, width):
    units = round(16 * width)
    return nn.Sequential(
        nn.Embedding(dataset.vocabulary, units),
        nn.Linear(units, units),
        nn.ReLU(),
        nn.Linear(units, dataset.vocabulary),
    )


class Tied(nn.Module):
    """A language model whose output has the weights of its embedding."""

    def __init__(self, vocabulary, units):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, units)
        self.hidden = nn.Sequential(
            nn.Linear(units, 2 * units), nn.ReLU(), nn.Linear(2 * units, units)
        )
        self.output = nn.Linear(units, vocabulary, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, tokens):
        return self.output(self.hidden(self.embedding(tokens)))


def tied(dataset, width):
    return Tied(dataset.vocabulary, round(16 * width))


class _Counting(LocalSteps):
    """Adds up, on the device, what the server sent, and returns it."""

    def finish(self):
        sent = self.task.extra["sent"]
        kept = self.task.state.get("sum", {})
        total = {n: t + kept.get(n, torch.zeros_like(t)) for n, t in sent.items()}
        self.task.state["sum"] = total
        return {"sent": total}


class _CountingObjective(LocalObjective):
    def begin(self, task):
        return _Counting(task)


@dataclass(frozen=True)
class Kept(Algorithm):
    """An algorithm whose devices keep something and send it along."""

    keeps_client_state = True

    def aggregator(self, in_flight):
        return Mixing(0.5)

    def objective(self):
        return _CountingObjective()


class _Reporting(LocalSteps):
    """Reports what the train config says, as PyTorch has it."""

    def metrics(self):
        reported = self.task.number("reported")
        return {"largest": torch.tensor(reported), "steps": self.task.steps}


class _Overwriting(LocalSteps):
    """Reports a number that each task has."""

    def metrics(self):
        return {"train-loss": 0.0}


class _Texting(LocalSteps):
    """Reports no number."""

    def metrics(self):
        return {"cluster": "first"}


@dataclass(frozen=True)
class _ReportingObjective(LocalObjective):
    steps: type = _Reporting

    def config(self):
        return {"reported": 4.0}

    def begin(self, task):
        return self.steps(task)


class _Reported(Mixing):
    """Has what the device says."""

    def merge(self, state, update):
        assert update.metrics["largest"] == 4
        assert update.metrics["steps"] > 0
        return super().merge(state, update)


@dataclass(frozen=True)
class Reports(Algorithm):
    """An algorithm whose devices report numbers of their own."""

    def aggregator(self, in_flight):
        return _Reported(0.5)

    def objective(self):
        return _ReportingObjective()


@dataclass(frozen=True)
class Overwrites(Reports):
    def objective(self):
        return _ReportingObjective(_Overwriting)


@dataclass(frozen=True)
class Texts(Reports):
    def objective(self):
        return _ReportingObjective(_Texting)


class _Curious(Selection):
    """Chooses the idle device with the largest loss; those that are new first."""

    def __init__(self):
        self.losses = {}

    def choose(self, idle, ranks, busy_ranks, generator):
        return max(idle.tolist(), key=lambda d: self.losses.get(d, math.inf))

    def learn(self, update):
        self.losses[update.device] = update.metrics["train-loss"]


@dataclass(frozen=True)
class Curious(Algorithm):
    """An algorithm that says who is next."""

    def aggregator(self, in_flight):
        return Mixing(0.5)

    def selection(self):
        return _Curious()


class _SendsAlong(Mixing):
    """Sends the model with every task once more."""

    def extra(self, state):
        return {"sent": dict(state)}


@dataclass(frozen=True)
class SentAlong(Kept):
    """One whose local steps need the record that comes with a task."""

    def aggregator(self, in_flight):
        return _SendsAlong(0.5)

    def objective(self):
        return _AddingObjective()


class _Adding(LocalSteps):
    """Reads what the server sent, from the first step on."""

    def __init__(self, task):
        super().__init__(task)
        self.sent = task.extra["sent"]


class _AddingObjective(LocalObjective):
    def begin(self, task):
        return _Adding(task)


@dataclass(frozen=True)
class SilentlyKept(Kept):
    """One that does not say so."""

    keeps_client_state = False


@dataclass(frozen=True)
class Slashed(Kept):
    """It has a name that is no folder's."""

    name: ClassVar[str] = "mine/kept"


class OneAgainstAll(Classification):
    """Squared errors of scores, which are no logits."""

    def loss(self, outputs, targets):
        return F.mse_loss(outputs, F.one_hot(targets, self.num_classes).float())


def two_sides(path):
    """Return points in a plane, and on which side of it each lies."""
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    y = (x.sum(1) > 0).long()
    return Dataset(x[:240], y[:240], x[240:], y[240:], OneAgainstAll(2))


def no_data(path):
    return "nothing"


def no_model(dataset, width):
    return "nothing"


class Odd(nn.Sequential):
    """A perceptron with a weight of a type of its own, and with extra state."""

    def __init__(self, inputs, dtype=torch.float32):
        super().__init__(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 1))
        self.shift = nn.Parameter(torch.zeros(1, dtype=dtype))

    def forward(self, x):
        return super().forward(x) + self.shift.real.to(x.dtype)

    def get_extra_state(self):
        return {"version": 1}

    def set_extra_state(self, state):
        assert state == {"version": 1}


def with_extra_state(dataset, width):
    return Odd(*dataset.input_shape)


def with_complex64(dataset, width):
    return Odd(*dataset.input_shape, torch.complex64)


def with_complex128(dataset, width):
    return Odd(*dataset.input_shape, torch.complex128)
