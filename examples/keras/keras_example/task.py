"""The model and the data."""

from functools import cache

import keras
import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

PIXELS, HIDDEN, DIGITS = 64, 64, 10


def load_model(lr: float = 0.1) -> keras.Model:
    """Return a perceptron with random weights."""
    model = keras.Sequential(
        [
            keras.layers.Input((PIXELS,)),
            keras.layers.Dense(HIDDEN, activation="relu"),
            keras.layers.Dense(DIGITS, activation="softmax"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.SGD(lr),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    return model


@cache
def load_images() -> list[NDArray[np.float32]]:
    """Return training and test images, training and test labels."""
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype("float32"),
        labels,
        test_size=0.2,
        stratify=labels,
        random_state=42,
    )


def load_data(partition_id: int, num_partitions: int) -> tuple[NDArray, NDArray]:
    """Return the training images of one node, and their labels."""
    images, _, labels, _ = load_images()
    mine = slice(partition_id, None, num_partitions)
    return images[mine], labels[mine]


def test(model: keras.Model) -> float:
    """Return the accuracy on the server's images."""
    _, images, _, labels = load_images()
    return float(model.evaluate(images, labels, verbose=0)[1])
