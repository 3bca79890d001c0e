"""Small compact archives of CIFAR's kind."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

_START_OF_SCAN = b"\xff\xda"


def plain_images(count: int) -> npt.NDArray[np.uint8]:
    """Make images of one colour each, which JPEG keeps almost as they are."""
    generator = np.random.default_rng(count)
    colours = generator.integers(0, 256, (count, 1, 1, 3), dtype=np.uint8)
    return np.broadcast_to(colours, (count, 32, 32, 3)).copy()


def compact_arrays(
    images: npt.NDArray[np.uint8], labels: list[int], tests: int
) -> dict[str, Any]:
    """Make the arrays of an archive; the last `tests` images are for testing."""
    files = [_jpeg(image) for image in images]
    length = files[0].index(_START_OF_SCAN)
    bodies = [file[length:] for file in files]
    return {
        "header": np.frombuffer(files[0][:length], np.uint8),
        "data": np.frombuffer(b"".join(bodies), np.uint8),
        "offsets": np.cumsum([0, *map(len, bodies)]),
        "label": np.array(labels, np.uint8),
        "is_test": np.arange(len(labels)) >= len(labels) - tests,
    }


def _jpeg(image: npt.NDArray[np.uint8]) -> bytes:
    content = io.BytesIO()
    Image.fromarray(image).save(content, "JPEG", quality=90, subsampling=0)
    return content.getvalue()
