import gzip
import sys

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from flwr_asyncdrop.app import Dataset, Regression
from flwr_asyncdrop.app.data import DATASET_NAMES, load_dataset
from flwr_asyncdrop.app.data.digits import embedded, stratified_split
from flwr_asyncdrop.exceptions import DataError


class TestDigits:
    def test_shapes_and_split(self):
        digits = load_dataset("digits")
        assert digits.input_shape == (1, 8, 8)
        assert digits.num_classes == 10
        assert digits.train_x.shape == (1438, 1, 8, 8)
        assert digits.test_x.shape == (359, 1, 8, 8)
        counts = torch.stack(
            [torch.bincount(digits.train_y), torch.bincount(digits.test_y)]
        )
        fractions = counts[1] / counts.sum(0)
        assert torch.allclose(fractions, torch.tensor(0.2), atol=0.003)

    def test_are_those_of_scikit_learn(self):
        ink, labels = embedded()
        known = load_digits()
        assert np.array_equal(ink, known.images)
        assert np.array_equal(labels, known.target)

    def test_grey_levels_are_kept_apart(self):
        levels = load_dataset("digits").train_x.unique()
        assert len(levels) == 17
        assert levels[0] == 0
        assert levels[-1] == 255

    def test_split_is_the_same_in_every_process(self):
        # Recorded once: a change would make old and new accuracies incomparable.
        test_y = load_dataset("digits").test_y
        assert test_y[:12].tolist() == [5, 9, 2, 4, 6, 7, 9, 3, 4, 6, 8, 5]

    def test_normalised_to_zero_mean_and_unit_variance(self):
        digits = load_dataset("digits")
        x, _ = digits.batch("train", slice(None))
        assert x.mean().abs() < 1e-3
        assert abs(x.std() - 1) < 1e-3


def test_stratified_split_by_hand():
    labels = np.array([0] * 10 + [1] * 5)
    train, test = stratified_split(labels, 0.2, np.random.default_rng(0))
    assert labels[test].tolist() == [0, 0, 1]
    assert sorted([*train, *test]) == list(range(15))


class TestFashionMnist:
    def test_loads(self, fashion_root):
        data = load_dataset("fashion-mnist", fashion_root)
        assert data.train_x.shape == (20, 1, 28, 28)
        assert data.train_x.dtype == torch.uint8
        assert data.train_y.tolist() == [*range(10), *range(10)]
        assert data.train_y.dtype == torch.int64
        assert data.test_x.shape == (10, 1, 28, 28)
        assert data.num_classes == 10

    @pytest.mark.parametrize("below", ["", "FashionMNIST", "FashionMNIST/raw"])
    def test_folder_may_be_the_root_or_its_own(self, fashion_root, below):
        data = load_dataset("fashion-mnist", str(fashion_root / below))
        assert len(data.train_y) == 20

    def test_loaded_once_a_folder(self, fashion_root):
        first = load_dataset("fashion-mnist", fashion_root)
        assert load_dataset("fashion-mnist", fashion_root / "FashionMNIST") is first
        assert load_dataset("fashion-mnist", fashion_root, download=True) is first

    def test_images_and_labels_of_different_numbers(self, fashion_root, to_idx):
        labels = fashion_root / "FashionMNIST/raw/train-labels-idx1-ubyte.gz"
        labels.write_bytes(gzip.compress(to_idx(np.zeros(19, np.uint8))))
        with pytest.raises(
            DataError, match=r"train labels have shape \(19,\), not \(20,\)"
        ):
            load_dataset("fashion-mnist", fashion_root)

    def test_label_out_of_range(self, fashion_root, to_idx):
        labels = fashion_root / "FashionMNIST/raw/t10k-labels-idx1-ubyte"
        labels.write_bytes(to_idx(np.full(10, 10, np.uint8)))
        with pytest.raises(DataError, match="test labels go from 10 to 10"):
            load_dataset("fashion-mnist", fashion_root)

    @pytest.mark.parametrize("shape", [(10, 28, 27), (0, 28, 28), (10,)])
    def test_images_of_another_shape(self, fashion_root, to_idx, shape):
        images = fashion_root / "FashionMNIST/raw/t10k-images-idx3-ubyte"
        images.write_bytes(to_idx(np.zeros(shape, np.uint8)))
        with pytest.raises(DataError, match="test inputs have shape"):
            load_dataset("fashion-mnist", fashion_root)

    def test_a_missing_file_is_named_where_the_others_are(self, fashion_root):
        raw = fashion_root / "FashionMNIST/raw"
        (raw / "t10k-labels-idx1-ubyte").unlink()
        with pytest.raises(DataError) as caught:
            load_dataset("fashion-mnist", raw)
        assert f"{raw / 't10k-labels-idx1-ubyte'} is missing" in str(caught.value)


class TestCifar:
    def test_cifar10(self, cifar10_root):
        data = load_dataset("cifar10", cifar10_root)
        assert data.input_shape == (3, 32, 32)
        assert data.num_classes == 10
        assert len(data.train_y) == 30

    def test_cifar10_in_its_own_folder(self, cifar10_root):
        data = load_dataset("cifar10", cifar10_root / "cifar-10-batches-py")
        assert len(data.train_y) == 30

    def test_cifar100(self, cifar100_root):
        data = load_dataset("cifar100", cifar100_root)
        assert data.input_shape == (3, 32, 32)
        assert data.num_classes == 100
        assert len(data.test_y) == 5


class TestBatch:
    def test_by_hand(self, cifar10_root):
        data = load_dataset("cifar10", cifar10_root)
        x, y = data.batch("train", np.array([7, 2]))
        assert x.shape == (2, 3, 32, 32)
        assert x.dtype == torch.float32
        assert y.tolist() == [2, 2]
        for channel in range(3):
            fraction = data.train_x[7, channel, 4, 5].item() / 255
            expected = (fraction - data.prepare.mean[channel]) / data.prepare.std[
                channel
            ]
            assert x[0, channel, 4, 5].item() == pytest.approx(expected, abs=1e-5)

    def test_every_kind_of_index(self, cifar10_root):
        data = load_dataset("cifar10", cifar10_root)
        x, y = data.batch("test", slice(1, 4))
        for indices in (np.arange(1, 4), torch.arange(1, 4)):
            same_x, same_y = data.batch("test", indices)
            assert torch.equal(x, same_x)
            assert torch.equal(y, same_y)

    def test_a_batch_lies_in_memory_as_the_data_do(self):
        data = load_dataset("digits")
        indices = np.array([5, 0, 5])
        x, _ = data.batch("train", indices)
        assert x.stride() == data.train_x[indices].stride()
        assert torch.equal(x, data.batch("train", slice(0, 6))[0][indices])

    @pytest.mark.parametrize(
        "values",
        [
            torch.arange(40).unfold(0, 9, 1),  # windows of a text
            torch.arange(40).unfold(0, 9, 4)[:, :-1],
            torch.arange(40).unfold(0, 9, 12),  # these have gaps between them
            torch.rand(7, 1, 4, 4).expand(-1, 3, -1, -1),  # grey in three channels
            torch.zeros(()).expand(7),
            torch.rand(4, 5, 7).permute(2, 0, 1),
            torch.rand(14, 3)[::2],
        ],
    )
    def test_samples_that_share_memory_come_as_they_are(self, values):
        data = Dataset(values, values, values, values, Regression())
        indices = np.array([2, 0, 1, 2])
        for batch in data.batch("train", indices):
            assert torch.equal(batch, values[indices])

    def test_a_model_that_changes_its_input_changes_no_sample(self):
        x, y = torch.ones(4, 3), torch.zeros(4)
        data = Dataset(x, y, x, y, Regression())
        for inputs in (data.example_inputs(), data.batch("train", np.array([0, 1]))[0]):
            inputs.sub_(0.5)
        assert data.train_x.eq(1).all()

    def test_the_images_stay_as_they_are(self, cifar10_root):
        data = load_dataset("cifar10", cifar10_root)
        before = data.train_x.clone()
        data.batch("train", slice(None))
        assert torch.equal(data.train_x, before)


class TestErrors:
    def test_unknown_name(self):
        with pytest.raises(DataError, match="unknown data set 'mnist'") as caught:
            load_dataset("mnist")
        assert all(name in str(caught.value) for name in DATASET_NAMES)

    def test_no_folder(self):
        with pytest.raises(DataError, match="cifar10 is read from files: set data-dir"):
            load_dataset("cifar10")

    @pytest.mark.parametrize(
        ("name", "file"),
        [
            ("fashion-mnist", "FashionMNIST/raw/train-images-idx3-ubyte"),
            ("cifar10", "cifar-10-batches-py/data_batch_1"),
            ("cifar100", "cifar-100-python/train"),
        ],
    )
    def test_absent(self, tmp_path, name, file):
        with pytest.raises(DataError) as caught:
            load_dataset(name, tmp_path)
        message = str(caught.value)
        assert message.startswith(f"no {name} in {tmp_path}: {tmp_path / file} is miss")
        assert "set data-dir to the folder" in message
        assert "download=true" in message
        assert "\n" not in message


def test_torchvision_is_not_imported_to_load(fashion_root, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    monkeypatch.setitem(sys.modules, "torchvision.datasets", None)
    load_dataset("fashion-mnist", fashion_root, download=True)
