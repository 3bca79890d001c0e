"""1 and 2 bits: beside matrices written out, and as good as theory says."""

import math

import numpy as np
import pytest

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.wire.codec import Rotated
from flwr_asyncdrop.wire.codec.eden import LEVELS, THRESHOLD
from flwr_asyncdrop.wire.codec.hadamard import Rotation, SignStream, walsh_hadamard
from flwr_asyncdrop.wire.codec.vectors import chunks, totals
from tests.wire.codec.samples import heavy, normal, one_hot, relative_error

both_sizes = pytest.mark.parametrize("bits", [1, 2])
both = pytest.mark.parametrize("unbiased", [True, False])
every_kind = pytest.mark.parametrize(
    "numbers", [normal, heavy, one_hot, lambda n: np.ones(n, np.float32)]
)
# The mean squared error D of the optimal quantiser, and 1 / (1 - D) - 1.
THEORY = {
    (1, False): 1 - 2 / math.pi,
    (1, True): math.pi / 2 - 1,
    (2, False): 0.11748,
    (2, True): 0.13312,
}


def there_and_back(scheme, values, unbiased=False, seed=0):
    data = scheme.encode(values, seed, unbiased=unbiased)
    return scheme.decode(data, values.size, seed)


def hadamard(size):
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


@pytest.mark.parametrize("size", [1, 2, 8, 256])
@pytest.mark.parametrize("number", [1, 3])
def test_butterflies_are_the_matrix(size, number):
    columns = normal(size * number).reshape(size, number)
    expected = hadamard(size) @ columns
    np.testing.assert_allclose(walsh_hadamard(columns), expected, rtol=0, atol=1e-4)


def test_the_transform_by_hand():
    columns = np.array([[1], [2], [3], [5]], np.float32)
    assert walsh_hadamard(columns).tolist() == [[11], [-3], [-5], [1]]


def test_undoing_a_rotation_gives_the_columns_times_the_square_of_their_size():
    columns = np.round(normal(64 * 3) * 8).reshape(64, 3)
    rotation = Rotation(SignStream(5), columns.shape)
    rotated = rotation.apply(columns.copy())
    assert (rotated != columns * 64).any()
    np.testing.assert_array_equal(rotation.undo(rotated), columns * 64**2)


def test_signs_are_fair_independent_and_the_seeds():
    def drawn(seed):
        return SignStream(seed).next((512, 64)) >> 31

    assert set(np.unique(SignStream(1).next((8, 8)))) == {0, 1 << 31}
    signs = drawn(1) * 2.0 - 1
    for lag in (0, 1, 8, 64):
        other = np.roll(signs.ravel(), lag) if lag else 1
        assert abs((signs.ravel() * other).mean()) < 5 / math.sqrt(signs.size)
    assert (drawn(1) == drawn(1)).all()
    assert (drawn(1) != drawn(2)).any()


def test_the_levels_are_the_best_for_normal_numbers():
    # Each level is the mean of what becomes it, each threshold half-way (Max, 1960).
    def density(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def above(x):
        return math.erfc(x / math.sqrt(2)) / 2

    low, high = LEVELS[2][2:]
    assert (low + high) / 2 == pytest.approx(THRESHOLD, abs=1e-6)
    inner, outer = 0.5 - above(THRESHOLD), above(THRESHOLD)
    assert (density(0) - density(THRESHOLD)) / inner == pytest.approx(low, abs=1e-6)
    assert density(THRESHOLD) / outer == pytest.approx(high, abs=1e-6)
    error = 1 - 2 * (inner * low**2 + outer * high**2)
    assert error == pytest.approx(THEORY[2, False], abs=1e-5)
    assert LEVELS[2][:2].tolist() == [-low, -high]


def reference(values, bits, seed, unbiased):
    """Return what comes back, from matrices, vector by vector, in float64."""
    found, signs = np.empty(values.size), SignStream(seed)
    for chunk in chunks(values.size):
        size, number = chunk.shape
        padded = np.zeros(size * number)
        padded[: chunk.count] = values[chunk.start : chunk.stop]
        matrix = hadamard(size)  # of integers: a sum of 0 is exactly 0
        first, second = (
            1 - 2.0 * (signs.next(chunk.shape) >> 31).astype(float) for _ in range(2)
        )
        columns = padded.reshape(size, number).T
        back = []
        for x, d1, d2 in zip(columns, first.T, second.T, strict=True):
            turn = matrix @ np.diag(d2) @ matrix @ np.diag(d1)
            r = turn @ x
            if not r.any():
                back.append(r)
                continue
            deviation = math.sqrt(r @ r / size)
            levels = LEVELS[bits][len(LEVELS[bits]) // 2 :].astype(float)
            q = np.where(np.abs(r) > THRESHOLD * deviation, levels[-1], levels[0])
            q *= np.where(r >= 0, 1, -1)
            scale = (r @ r) / (r @ q)
            if not unbiased:
                used = chunk.count / (size * number)
                scale /= 1 + used * ((r @ r) * (q @ q) / (r @ q) ** 2 - 1)
            back.append(scale * (turn.T @ q) / size**2)
        flat = np.array(back).T.reshape(-1)
        found[chunk.start : chunk.stop] = flat[: chunk.count]
    return found


@both_sizes
@both
@every_kind
@pytest.mark.parametrize("count", [11, 128, 700])
def test_it_is_the_reference(bits, unbiased, numbers, count):
    values = numbers(count)
    found = there_and_back(Rotated(bits), values, unbiased, seed=9)
    expected = reference(values, bits, 9, unbiased)
    largest = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * largest)


@both_sizes
@both
@every_kind
def test_the_error_is_that_of_theory_whatever_the_numbers_are(bits, unbiased, numbers):
    values = numbers(2**15)
    # A vector of one large number is most of the error: some seeds.
    errors = [
        relative_error(there_and_back(Rotated(bits), values, unbiased, seed), values)
        for seed in range(12)
    ]
    assert np.mean(errors) == pytest.approx(THEORY[bits, unbiased], rel=0.05)


@both_sizes
@every_kind
@pytest.mark.parametrize("count", [100, 1000])
def test_the_mean_over_seeds_is_the_numbers(bits, numbers, count):
    values, scheme, runs = numbers(count), Rotated(bits), 400
    found = [there_and_back(scheme, values, True, seed) for seed in range(runs)]
    single = np.mean([relative_error(each, values) for each in found])
    mean = np.mean(found, axis=0)
    # Along the numbers, and in all directions.
    assert values @ mean / (values @ values) == pytest.approx(1, abs=0.01)
    assert relative_error(mean, values) < 1.6 * single / runs


@both_sizes
def test_zeros_behind_few_numbers_make_them_the_more_exact(bits):
    # A share of the error falls on the zeros: the scale of the least error knows it.
    values = normal(24)
    for unbiased in (True, False):
        errors = [
            relative_error(
                there_and_back(Rotated(bits), values, unbiased, seed), values
            )
            for seed in range(300)
        ]
        spread = THEORY[bits, True] * 24 / 128
        expected = spread if unbiased else spread / (1 + spread)
        assert np.mean(errors) == pytest.approx(expected, rel=0.1)


@both_sizes
def test_few_numbers_stay_as_they_are(bits):
    values = heavy(5)
    assert there_and_back(Rotated(bits), values, True).tolist() == values.tolist()
    assert Rotated(bits).most_bytes(5) == 21


@pytest.mark.parametrize("bits", [0, 3, 4, 2.0, True, "2"])
def test_what_is_no_scheme_is_refused(bits):
    with pytest.raises(ConfigError, match=f"bits={bits!r} must be 1 or 2"):
        Rotated(bits)


@pytest.mark.parametrize("count", [0, 1, 127, 129, 2**16 - 1, 2**16, 3 * 2**16 + 5000])
def test_chunks_cover_a_tensor_and_waste_little(count):
    found = list(chunks(count))
    assert [n for c in found for n in (c.start, c.stop)][1:-1] == [
        place for n in range(1, len(found)) for place in (n * 2**16, n * 2**16)
    ]
    assert sum(c.count for c in found) == count
    assert totals(count) == (
        sum(c.shape[1] for c in found),
        sum(c.padded for c in found),
    )
    for chunk in found:
        assert 0 <= chunk.padded - chunk.count < max(128, chunk.count / 16 + 1)


@both_sizes
@pytest.mark.parametrize("scale", [-1.0, -0.0, math.nan, math.inf, -math.inf])
def test_a_scale_that_no_vector_has_is_refused(bits, scale):
    payload = bytearray(Rotated(bits).pack(normal(128), 0, unbiased=True))
    payload[:4] = np.float32(scale).tobytes()
    with pytest.raises(ValueError, match=r"negative|NaN or infinite"):
        Rotated(bits).unpack(bytes(payload), 128, 0)


@both_sizes
def test_numbers_in_a_vector_of_scale_zero_are_refused(bits):
    payload = bytearray(Rotated(bits).pack(np.zeros(128, np.float32), 0, unbiased=True))
    assert not any(payload)
    payload[-1] ^= 0x80
    with pytest.raises(ValueError, match="scale 0"):
        Rotated(bits).unpack(bytes(payload), 128, 0)


def test_few_numbers_that_are_not_finite_are_refused():
    payload = np.array([1, np.nan], "<f4").tobytes()
    with pytest.raises(ValueError, match="NaN"):
        Rotated(2).unpack(payload, 2, 0)


@both_sizes
def test_the_largest_float32_stays_finite(bits):
    values = np.full(500, np.finfo(np.float32).max)
    found = there_and_back(Rotated(bits), values, True)
    assert np.isfinite(found).all()
