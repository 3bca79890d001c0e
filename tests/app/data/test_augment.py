"""Augmented images beside a naive reference, and where they are used."""

import pytest
import torch

from flwr_asyncdrop.app.config import RunConfig
from flwr_asyncdrop.app.data.augment import CropAndFlip
from flwr_asyncdrop.app.experiment import load_data
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.seeding import torch_generator


def reference(images, generator):
    count, _, height, width = images.shape
    top, left, flip = (
        torch.randint(high, (count,), generator=generator).tolist()
        for high in (9, 9, 2)
    )
    changed = torch.zeros_like(images)
    for n, channel, row, column in torch.cartesian_prod(
        *map(torch.arange, images.shape)
    ).tolist():
        seen = width - 1 - column if flip[n] else column
        y, x = row + top[n] - 4, seen + left[n] - 4
        if 0 <= y < height and 0 <= x < width:
            changed[n, channel, row, column] = images[n, channel, y, x]
    return changed


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_equals_reference(dtype):
    images = torch.arange(1, 1 + 6 * 2 * 5 * 7).view(6, 2, 5, 7).to(dtype)
    kept = images.clone()
    changed = CropAndFlip(torch_generator(3, "augment"))(images)
    assert changed.dtype is dtype
    assert torch.equal(changed, reference(images, torch_generator(3, "augment")))
    assert torch.equal(images, kept)


def test_every_shift_and_both_sides_come_up():
    """A single white pixel in the middle tells where its image has gone."""
    images = torch.zeros(4000, 1, 9, 9, dtype=torch.uint8)
    images[:, 0, 4, 5] = 1
    changed = CropAndFlip(torch_generator(0, "augment"))(images)
    places = changed.nonzero()[:, 2:]
    assert set(places[:, 0].tolist()) == set(range(9))
    # 5 moves to 1..8 and out of sight; mirrored it is at 3, which moves to 0..7.
    assert set(places[:, 1].tolist()) == set(range(9))
    # One shift of nine loses the pixel on its side, whether mirrored or not.
    assert len(places) == pytest.approx(4000 * 8 / 9, rel=0.03)


def test_samples_are_changed_before_they_are_prepared():
    data = load_data(RunConfig())
    plain, targets = data.batch("train", slice(0, 3))
    black, same = data.batch("train", slice(0, 3), augment=torch.zeros_like)
    assert torch.equal(targets, same)
    assert not torch.equal(plain, black)
    assert black.unique().numel() == 1


def test_what_is_no_image_is_refused(monkeypatch):
    texts = load_data(RunConfig())
    monkeypatch.setattr(type(texts), "input_shape", (20,))
    load_data.cache_clear()
    with pytest.raises(ConfigError, match=r"augment=true .* shape \(20,\): leave it"):
        load_data(RunConfig(augment=True))
    load_data.cache_clear()
