"""Noise is uniform, exact in float32, and the seed's."""

import numpy as np
import pytest

from flwr_asyncdrop.wire.codec.noise import NOISE_BITS, RoundingNoise


def drawn(count, seed=0, offset=0.0):
    values = np.empty(count, np.float32)
    RoundingNoise(seed, offset).fill(values)
    return values


@pytest.mark.parametrize("offset", [0, 8, 128])
def test_each_number_is_one_of_the_grid_to_the_last_bit(offset):
    grid = (drawn(100_000, offset=offset).astype(np.float64) - offset) * 2**NOISE_BITS
    assert ((grid - 0.5) == np.floor(grid)).all()
    assert 0 < grid.min() < 2
    assert 2**NOISE_BITS - 2 < grid.max() < 2**NOISE_BITS


def test_it_is_uniform():
    cells = np.bincount((drawn(2**20) * 64).astype(int), minlength=64)
    # Chi-squared of 63 degrees: above 120 once in 10^5 seeds.
    expected = 2**20 / 64
    assert ((cells - expected) ** 2 / expected).sum() < 120


def test_neighbours_are_independent():
    values = drawn(2**20) - 0.5
    for lag in (1, 2, 3, 4, 64):
        correlation = (values[lag:] * values[:-lag]).mean() * 12
        assert abs(correlation) < 5 / 2**10


def test_the_seed_decides():
    assert (drawn(9) == drawn(9)).all()
    assert (drawn(9) != drawn(9, seed=1)).any()


def test_it_goes_on():
    noise, both = RoundingNoise(4, 0), drawn(16, seed=4)
    first, second = np.empty((2, 4), np.float32), np.empty(8, np.float32)
    noise.fill(first)
    noise.fill(second)
    assert (np.concatenate((first.reshape(-1), second)) == both).all()
