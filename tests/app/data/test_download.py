import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

from flwr_asyncdrop.app.data import load_dataset
from flwr_asyncdrop.app.data.catalogue import CATALOGUE
from flwr_asyncdrop.exceptions import DataError, MissingExtraError


@pytest.fixture
def fake_torchvision(monkeypatch):
    """Install a torchvision whose FashionMNIST is the function given."""

    def install(fashion_mnist):
        datasets = ModuleType("torchvision.datasets")
        datasets.FashionMNIST = fashion_mnist
        monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
        monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)

    return install


def test_fetches_what_is_absent(fashion_root, fake_torchvision):
    target = fashion_root / "new" / "folder"
    calls = []

    def fetch(root, *, download):
        calls.append(download)
        shutil.copytree(fashion_root / "FashionMNIST", Path(root) / "FashionMNIST")

    fake_torchvision(fetch)
    assert len(load_dataset("fashion-mnist", target, download=True).train_y) == 20
    load_dataset("fashion-mnist", target, download=True)
    assert calls == [True]
    assert [path.name for path in target.iterdir()] == ["FashionMNIST"]


def test_completes_a_folder(fashion_root, fake_torchvision, tmp_path_factory):
    source = tmp_path_factory.mktemp("source") / "FashionMNIST"
    shutil.copytree(fashion_root / "FashionMNIST", source)
    (fashion_root / "FashionMNIST/raw/t10k-labels-idx1-ubyte").unlink()

    def fetch(root, *, download):
        shutil.copytree(source, Path(root) / "FashionMNIST")

    fake_torchvision(fetch)
    data = load_dataset("fashion-mnist", fashion_root, download=True)
    assert len(data.test_y) == 10


def test_failed_download_leaves_nothing(tmp_path, fake_torchvision):
    def fail(root, *, download):
        (Path(root) / "half").write_bytes(b"half a file")
        msg = "no mirror\nanswers"
        raise RuntimeError(msg)

    fake_torchvision(fail)
    with pytest.raises(DataError, match="could not download FashionMNIST") as caught:
        load_dataset("fashion-mnist", tmp_path, download=True)
    assert "(RuntimeError: no mirror answers)" in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_download_without_the_files(tmp_path, fake_torchvision):
    def fetch_nothing(root, *, download):
        pass

    fake_torchvision(fetch_nothing)
    with pytest.raises(DataError, match="brought no train-images-idx3-ubyte"):
        load_dataset("fashion-mnist", tmp_path, download=True)


def test_without_torchvision(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "torchvision.datasets", raising=False)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(MissingExtraError) as caught:
        load_dataset("cifar10", tmp_path, download=True)
    assert str(caught.value) == (
        "torchvision is not installed: pip install 'flwr-asyncdrop[data]'"
    )


def test_torchvision_of_another_torch(tmp_path, monkeypatch):
    package = tmp_path / "path" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    for name in [name for name in sys.modules if name.startswith("torchvision")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(package.parent)
    with pytest.raises(DataError, match="could not download CIFAR10") as caught:
        load_dataset("cifar10", tmp_path, download=True)
    assert "operator torchvision::nms does not exist" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10", "cifar100"])
def test_layouts_are_torchvisions(name):
    source = CATALOGUE[name].sources[0]
    # A torchvision that does not fit the torch beside it fails with RuntimeError.
    try:
        datasets = pytest.importorskip("torchvision.datasets")
    except RuntimeError as error:
        pytest.skip(f"torchvision does not import: {error}")
    dataset = getattr(datasets, source.torchvision)
    if name == "fashion-mnist":
        assert {f"{name}.gz" for name in source.files} == {
            name for name, _ in dataset.resources
        }
    else:
        assert dataset.base_folder == source.folder
        names = [name for name, _ in dataset.train_list + dataset.test_list]
        assert [*names, dataset.meta["filename"]] == list(source.files)
