"""Tiny data sets in the layouts of the real ones, and the real ones where present."""

import gzip
import hashlib
import pickle
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from flwr_asyncdrop.app.data.datasets import _load
from tests.archives import compact_arrays, plain_images

ByteArray = npt.NDArray[np.uint8]


@pytest.fixture(autouse=True)
def _nothing_loaded_before() -> Iterator[None]:
    _load.cache_clear()
    yield
    _load.cache_clear()


@pytest.fixture(autouse=True)
def _cache_of_its_own(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Keep tests out of the user's cache, but for the real data: it takes long."""
    with pytest.MonkeyPatch.context() as patch:
        if "real_data" not in request.fixturenames:
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def idx(array: ByteArray) -> bytes:
    sizes = struct.pack(f">{array.ndim}I", *array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.tobytes()


def python2_pickle(rows: ByteArray, labels: list[int], label_key: str) -> bytes:
    """Pickle a batch opcode by opcode, as Python 2 and numpy 1 wrote the originals."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes((len(value),)) + value

    def integer(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\0K\1\x87R"
    dtype += b"(K\3" + text(b"|") + b"NNN" + 2 * integer(-1) + b"K\0tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n"
    array += b"cnumpy\nndarray\n" + b"K\0\x85" + text(b"b") + b"\x87R"
    shape = integer(rows.shape[0]) + integer(rows.shape[1]) + b"\x86"
    content = b"T" + struct.pack("<i", rows.size) + rows.tobytes()
    array += b"(K\1" + shape + dtype + b"\x89" + content + b"tb"
    items = text(b"batch_label") + text(b"testing batch 1 of 1")
    items += text(b"data") + array
    items += text(label_key.encode()) + b"](" + b"".join(map(integer, labels)) + b"e"
    return b"\x80\2}(" + items + b"u."


@pytest.fixture
def to_idx() -> Callable[[ByteArray], bytes]:
    return idx


def pixels(*shape: int) -> ByteArray:
    return np.random.default_rng(shape).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture
def fashion_root(tmp_path: Path) -> Path:
    """Twenty training images (gzip'd) and ten test images (plain)."""
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    labels = np.arange(20, dtype=np.uint8) % 10
    for name, array in (
        ("train-images-idx3-ubyte", pixels(20, 28, 28)),
        ("train-labels-idx1-ubyte", labels),
    ):
        (folder / f"{name}.gz").write_bytes(gzip.compress(idx(array)))
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx(pixels(10, 28, 28)))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx(labels[:10]))
    return tmp_path


@pytest.fixture
def accept(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """Let torchvision take the files in a folder for those of a data set."""
    datasets = pytest.importorskip("torchvision.datasets")

    def accept(name: str, folder: Path) -> None:
        kind = getattr(datasets, name)
        key = kind.meta["key"]
        (folder / kind.meta["filename"]).write_bytes(pickle.dumps({key: ["a", "b"]}))

        def md5(file: str) -> str:
            return hashlib.md5((folder / file).read_bytes()).hexdigest()  # noqa: S324

        for files in ("train_list", "test_list"):
            listed = [[file, md5(file)] for file, _ in getattr(kind, files)]
            monkeypatch.setattr(kind, files, listed)
        meta = {**kind.meta, "md5": md5(kind.meta["filename"])}
        monkeypatch.setattr(kind, "meta", meta)

    return accept


@pytest.fixture
def cifar10_root(tmp_path: Path, accept: Callable[[str, Path], None]) -> Path:
    """Six images in each batch; batch i holds the labels i - 1, ..., i + 4."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    for number, name in enumerate(names):
        labels = [label % 10 for label in range(number, number + 6)]
        batch = python2_pickle(pixels(6, 3072), labels, "labels")
        (folder / name).write_bytes(batch)
    accept("CIFAR10", folder)
    return tmp_path


@pytest.fixture
def compact_root(tmp_path: Path) -> Path:
    """Five training images of the labels 0 to 4 and two test images."""
    arrays = compact_arrays(plain_images(7), [0, 1, 2, 3, 4, 9, 8], tests=2)
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / "cifar10" / "cifar10_jpeg90.npz", **arrays)
    return tmp_path


@pytest.fixture
def cifar100_root(tmp_path: Path, accept: Callable[[str, Path], None]) -> Path:
    """A hundred training images, one a class, and five test images."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    for name, size in (("train", 100), ("test", 5)):
        batch = python2_pickle(pixels(size, 3072), list(range(size)), "fine_labels")
        (folder / name).write_bytes(batch)
    accept("CIFAR100", folder)
    return tmp_path
