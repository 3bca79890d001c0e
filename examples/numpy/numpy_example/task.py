"""The model, the data, and how to train and test."""

from functools import cache

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

PIXELS, DIGITS = 64, 10
BATCH_SIZE = 16

Model = list[NDArray[np.float64]]
"""Weights of shape ``(pixels, digits)``, and biases of shape ``(digits,)``."""


def build_model() -> Model:
    """Return a classifier that knows nothing."""
    return [np.zeros((PIXELS, DIGITS)), np.zeros(DIGITS)]


@cache
def load_images() -> list[NDArray[np.float64]]:
    """Return training and test images, training and test labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        images / 16, labels, test_size=0.2, stratify=labels, random_state=42
    )


def load_data(partition_id: int, num_partitions: int) -> tuple[NDArray, NDArray]:
    """Return the training images of one node, and their labels."""
    images, _, labels, _ = load_images()
    mine = slice(partition_id, None, num_partitions)
    return images[mine], labels[mine]


def probabilities(model: Model, images: NDArray) -> NDArray:
    """Return the softmax of the logits, of shape ``(images, digits)``."""
    weights, biases = model
    logits = images @ weights + biases
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def train(
    model: Model, images: NDArray, labels: NDArray, epochs: int, lr: float
) -> float:
    """Train in place by mini-batch gradient descent; return the mean loss."""
    weights, biases = model
    losses = []
    for start in [*range(0, len(labels), BATCH_SIZE)] * epochs:
        here = slice(start, start + BATCH_SIZE)
        chances = probabilities(model, images[here])
        rows = np.arange(len(chances))
        losses.append(-np.log(chances[rows, labels[here]] + 1e-12).mean())
        chances[rows, labels[here]] -= 1
        weights -= lr * images[here].T @ chances / len(rows)
        biases -= lr * chances.mean(0)
    return float(np.mean(losses))


def test(model: Model) -> float:
    """Return the accuracy on the server's images."""
    _, images, _, labels = load_images()
    return float((probabilities(model, images).argmax(1) == labels).mean())
