"""Data sets whose task is no classification."""

from pathlib import Path

import torch
from flwr_asyncdrop.app import Dataset, NextToken, Regression
from sklearn.datasets import load_diabetes

LETTERS = "0123456789+=;"
LENGTH = 24


def diabetes(folder: Path | None) -> Dataset:
    """Return ten measurements of 442 patients, and how ill they were a year later.

    It comes with scikit-learn, so the folder is not looked at.
    """
    inputs, targets = load_diabetes(return_X_y=True)
    x = torch.tensor(inputs, dtype=torch.float32) * 20
    y = torch.tensor((targets - targets.mean()) / targets.std(), dtype=torch.float32)
    return Dataset(x[:342], y[:342], x[342:], y[342:], Regression())


def sums(folder: Path | None) -> Dataset:
    """Return lines such as ``"3+4=7;8+8=16;"``, for a model that writes on."""
    generator = torch.Generator().manual_seed(0)
    lines = torch.stack([_line(generator) for _ in range(1200)])
    x, y = lines[:, :-1], lines[:, 1:]
    task = NextToken(len(LETTERS))
    return Dataset(
        x[:1000], y[:1000], x[1000:], y[1000:], task, vocabulary=len(LETTERS)
    )


def _line(generator: torch.Generator) -> torch.Tensor:
    text = ""
    while len(text) <= LENGTH:
        a, b = torch.randint(10, (2,), generator=generator).tolist()
        text += f"{a}+{b}={a + b};"
    return torch.tensor([LETTERS.index(letter) for letter in text[: LENGTH + 1]])
