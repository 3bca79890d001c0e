"""The model, its arrays, and the data."""

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

BATCH_SIZE = 16
PIXELS, HIDDEN, DIGITS = 64, 64, 10


def build_model(lr: float = 0.05) -> MLPClassifier:
    """Return a perceptron with random weights."""
    model = MLPClassifier(
        (HIDDEN,),
        solver="sgd",
        momentum=0.0,
        batch_size=BATCH_SIZE,
        learning_rate_init=lr,
    )
    # scikit-learn makes the weights when it sees the first samples.
    nothing = np.zeros((BATCH_SIZE, PIXELS))
    return model.partial_fit(nothing, np.zeros(BATCH_SIZE), classes=np.arange(DIGITS))


def weights(model: MLPClassifier) -> dict[str, NDArray[np.float64]]:
    """Return the model's own arrays, by name."""
    layers = range(len(model.coefs_))
    return {f"coefs_{i}": model.coefs_[i] for i in layers} | {
        f"intercepts_{i}": model.intercepts_[i] for i in layers
    }


def get_arrays(model: MLPClassifier) -> ArrayRecord:
    """Return the model's weights for the wire."""
    return ArrayRecord({name: Array(array) for name, array in weights(model).items()})


def set_arrays(model: MLPClassifier, arrays: ArrayRecord) -> None:
    """Write weights from the wire into the model."""
    for name, array in weights(model).items():
        array[:] = arrays[name].numpy()


@cache
def load_images() -> list[NDArray[np.float64]]:
    """Return training and test images, training and test labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        images / 16, labels, test_size=0.2, stratify=labels, random_state=42
    )


def load_data(
    partition_id: int, num_partitions: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the training images of one node, and their labels."""
    images, _, labels, _ = load_images()
    mine = slice(partition_id, None, num_partitions)
    return images[mine], labels[mine]


def test(model: MLPClassifier) -> float:
    """Return the accuracy on the server's images."""
    _, images, _, labels = load_images()
    return float(model.score(images, labels))
