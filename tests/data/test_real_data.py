"""Checks against the real files, where they are at hand."""

import pytest
import torch

from flwr_asyncdrop.data import Dataset, load_dataset


@pytest.fixture
def fashion_mnist(real_data) -> Dataset:
    if not (real_data / "FashionMNIST").is_dir():
        pytest.skip(f"no FashionMNIST in {real_data}")
    return load_dataset("fashion-mnist", real_data)


def test_fashion_mnist_is_whole(fashion_mnist):
    assert torch.bincount(fashion_mnist.train_y).tolist() == [6000] * 10
    assert torch.bincount(fashion_mnist.test_y).tolist() == [1000] * 10
    assert fashion_mnist.train_x.shape == (60000, 1, 28, 28)
    assert fashion_mnist.test_x.shape == (10000, 1, 28, 28)
    # An ankle boot, a T-shirt, a T-shirt, a dress, a T-shirt.
    assert fashion_mnist.train_y[:5].tolist() == [9, 0, 0, 3, 0]


def test_fashion_mnist_mean_and_deviation(fashion_mnist):
    x = fashion_mnist.train_x.double() / 255
    assert x.mean().item() == pytest.approx(fashion_mnist.mean[0], abs=1e-4)
    assert x.std().item() == pytest.approx(fashion_mnist.std[0], abs=1e-4)


def test_fashion_mnist_is_read_once(fashion_mnist, real_data):
    assert load_dataset("fashion-mnist", real_data) is fashion_mnist
