"""Checks against the real files, where they are at hand."""

from pathlib import Path

import pytest
import torch

from flwr_asyncdrop.app.data import Dataset, Normalise, load_dataset
from flwr_asyncdrop.app.data.imdb import PADDING, UNKNOWN
from flwr_asyncdrop.exceptions import DataError


def load(name: str, folder: Path) -> Dataset:
    try:
        return load_dataset(name, folder)
    except DataError as error:
        if "is missing" not in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture
def fashion_mnist(real_data) -> Dataset:
    return load("fashion-mnist", real_data)


@pytest.mark.parametrize(
    ("name", "train", "test"),
    [("cifar10", [5000] * 10, [1000] * 10), ("cifar100", [500] * 100, [100] * 100)],
)
def test_cifar_is_whole(real_data, name, train, test):
    data = load(name, real_data)
    assert isinstance(data.prepare, Normalise)
    assert torch.bincount(data.train_y).tolist() == train
    assert torch.bincount(data.test_y).tolist() == test
    mean = data.train_x[::10].double().mean(dim=(0, 2, 3)) / 255
    # The original's, and the compact archive's, whose pixels are a little different.
    assert mean.tolist() == pytest.approx(data.prepare.mean, abs=0.005)


def test_imdb_is_whole(real_data):
    data = load("imdb", real_data)
    assert torch.bincount(data.train_y).tolist() == [12500, 12500]
    assert torch.bincount(data.test_y).tolist() == [12500, 12500]
    assert data.train_x.shape == data.test_x.shape == (25000, 200)
    # The most frequent word of English reviews, and every id there is.
    assert torch.bincount(data.train_x.long().flatten())[2:].argmax() == 0
    assert data.train_x.unique().tolist() == list(range(10_000))
    words = data.test_x[data.test_x != PADDING]
    assert 0.9 < (words != UNKNOWN).double().mean() < 0.96


def test_fashion_mnist_is_whole(fashion_mnist):
    assert torch.bincount(fashion_mnist.train_y).tolist() == [6000] * 10
    assert torch.bincount(fashion_mnist.test_y).tolist() == [1000] * 10
    assert fashion_mnist.train_x.shape == (60000, 1, 28, 28)
    assert fashion_mnist.test_x.shape == (10000, 1, 28, 28)
    # An ankle boot, a T-shirt, a T-shirt, a dress, a T-shirt.
    assert fashion_mnist.train_y[:5].tolist() == [9, 0, 0, 3, 0]


def test_fashion_mnist_mean_and_deviation(fashion_mnist):
    x = fashion_mnist.train_x.double() / 255
    assert x.mean().item() == pytest.approx(fashion_mnist.prepare.mean[0], abs=1e-4)
    assert x.std().item() == pytest.approx(fashion_mnist.prepare.std[0], abs=1e-4)


def test_fashion_mnist_is_read_once(fashion_mnist, real_data):
    assert load_dataset("fashion-mnist", real_data) is fashion_mnist
