"""Random images in the files of Fashion-MNIST, for machines that do not have it."""

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["write_fashion_mnist"]

_FOLDER = Path("FashionMNIST/raw")
_UINT8 = 0x08


def write_fashion_mnist(root: Path) -> None:
    """Write idx files of the real ones' shapes under `root`."""
    folder = root / _FOLDER
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    for split, count in (("train", 60_000), ("t10k", 10_000)):
        images = generator.integers(256, size=(count, 28, 28), dtype=np.uint8)
        labels = generator.integers(10, size=count, dtype=np.uint8)
        _write(folder / f"{split}-images-idx3-ubyte", images)
        _write(folder / f"{split}-labels-idx1-ubyte", labels)


def _write(path: Path, values: NDArray[np.uint8]) -> None:
    header = struct.pack(">HBB", 0, _UINT8, values.ndim)
    sizes = struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + sizes + values.tobytes())
