"""Blocks of 8 and 4 bits: by hand, beside a naive reference, and their theory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.wire.codec import Blocks, blocks
from flwr_asyncdrop.wire.codec.blocks import quantise
from flwr_asyncdrop.wire.codec.noise import NOISE_BITS, RoundingNoise
from flwr_asyncdrop.wire.codec.scales import scale_codes, scales_from
from tests.nightly import examples
from tests.wire.codec.samples import LARGEST, heavy, normal, one_hot, relative_error

both_sizes = pytest.mark.parametrize("bits", [4, 8])
both = pytest.mark.parametrize("unbiased", [True, False])


def there_and_back(scheme, values, unbiased=False, seed=0):
    data = scheme.encode(values, seed, unbiased=unbiased)
    return scheme.decode(data, values.size, seed)


def test_the_bytes_of_four_bits_by_hand():
    # The largest is 7: the scale is 1, whose float32 is 0x3F800000, and 0x7F00 without
    # the sign and the last 15 bits. High bytes first. A code is the integer plus 8.
    values = np.array([7, -7, 3.4, 0, -0.5, 0.5, 2.5, -3.4, 14], np.float32)
    payload = Blocks(4, block=8).pack(values, 0, unbiased=False)
    scales, codes = payload[:4], payload[4:]
    # The second block's scale is 2, 0x40000000: 0x8000.
    assert scales == bytes([0x7F, 0x80, 0x00, 0x00])
    # 15 and 1, 11 and 8, 8 and 9, 11 and 5; 15 and a zero behind the last number.
    assert codes == bytes([0x1F, 0x8B, 0x98, 0x5B, 0x8F])
    found = Blocks(4, block=8).unpack(payload, 9, 0)
    assert found.tolist() == [7, -7, 3, 0, 0, 1, 3, -3, 14]


def test_the_bytes_of_eight_bits_by_hand():
    values = np.array([127, -127, 0, 0.4, -0.6, 64, 1, 2], np.float32)
    payload = Blocks(8, block=8).pack(values, 0, unbiased=False)
    assert payload == bytes([0x7F, 0x00, 255, 1, 128, 128, 127, 192, 129, 130])
    found = Blocks(8, block=8).unpack(payload, 8, 0)
    assert found.tolist() == [127, -127, 0, 0, -1, 64, 1, 2]


def reference(values, bits, block, seed, unbiased):
    """Return what comes back, one number after the other."""
    levels = 2 ** (bits - 1) - 1
    padded = -(-values.size // block) * block
    shifts = np.empty(padded, np.float32)
    RoundingNoise(seed, 0).fill(shifts)
    found = []
    for place, value in enumerate(values):
        start = place // block * block
        largest = max(abs(float(v)) for v in values[start : start + block])
        if largest == 0:
            found.append(0.0)
            continue
        # To nine bits of significand, upwards.
        fraction, exponent = np.frexp(np.float32(largest) / np.float32(levels))
        scale = np.ldexp(np.ceil(fraction * 512) / 512, exponent)
        shift = float(shifts[place]) if unbiased else 0.5
        found.append(float(np.floor(float(value) / scale + shift)) * scale)
    return np.array(found)


@both_sizes
@both
@pytest.mark.parametrize("block", [8, 64])
@pytest.mark.parametrize("numbers", [normal, heavy, one_hot])
def test_it_is_the_reference(bits, unbiased, block, numbers):
    values = numbers(3001)
    found = there_and_back(Blocks(bits, block), values, unbiased, seed=5)
    expected = reference(values, bits, block, 5, unbiased)
    # A number that is all but on a threshold may go the other way: none is here.
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@both_sizes
@both
def test_chunks_make_no_difference(bits, unbiased, monkeypatch):
    values = normal(1000)
    whole = Blocks(bits).pack(values, 5, unbiased=unbiased)
    monkeypatch.setattr(blocks, "_CHUNK", 128)
    assert Blocks(bits).pack(values, 5, unbiased=unbiased) == whole
    pieces = Blocks(bits).unpack(whole, values.size, 5)
    monkeypatch.undo()
    np.testing.assert_array_equal(Blocks(bits).unpack(whole, values.size, 5), pieces)


@both_sizes
@given(
    values=st.lists(
        st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=200
    ),
    unbiased=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
@settings(deadline=None, max_examples=examples(100))
def test_no_number_is_off_by_more_than_a_step(bits, values, unbiased, seed):
    values = np.array(values, np.float32)
    found = there_and_back(Blocks(bits, 16), values, unbiased, seed).astype(np.float64)
    for start in range(0, values.size, 16):
        piece = slice(start, start + 16)
        largest = np.abs(values[piece]).max(initial=0).astype(np.float64)
        step = max(largest / (2 ** (bits - 1) - 1) * 1.004, 2.0**-126)
        bound = step * (1.001 if unbiased else 0.501)
        assert (np.abs(found[piece] - values[piece]) <= bound).all()
    assert (found[values == 0] == 0).all()
    assert not np.signbit(found[values == 0]).any()


@both_sizes
@both
def test_a_zero_among_numbers_is_an_exact_zero(bits, unbiased):
    values = normal(100_000)
    values[::3] = 0
    values[1::3] *= np.float32(1e-8)
    found = there_and_back(Blocks(bits), values, unbiased)
    assert not found[::3].view(np.uint32).any()


@both_sizes
def test_the_largest_float32_stays_finite(bits):
    for value in (LARGEST, -LARGEST):
        values = np.full(64, value, np.float32)
        found = there_and_back(Blocks(bits), values)
        np.testing.assert_allclose(found, values, rtol=0.005)


@both_sizes
def test_small_weights_are_as_exact_as_others(bits):
    values = normal(6400)
    usual = relative_error(there_and_back(Blocks(bits), values), values)
    for factor in (1e-8, 1e-30, 1e30):
        scaled = values * np.float32(factor)
        error = relative_error(there_and_back(Blocks(bits), scaled), scaled)
        assert error == pytest.approx(usual, rel=0.02)


class EveryNoise:
    """Row k gets the k-th of all numbers that the noise can be."""

    def __init__(self, offset):
        self._offset = offset

    def fill(self, out):
        each = (np.arange(len(out), dtype=np.float64) + 0.5) / 2**NOISE_BITS
        out[:] = (each + self._offset)[:, None]
        assert (out[:, 0].astype(np.float64) == each + self._offset).all()


@both_sizes
def test_the_mean_over_all_noise_is_the_number(bits):
    levels = 2 ** (bits - 1) - 1
    row = np.append(heavy(62), [0, 1e-6]).astype(np.float32)
    scales = scales_from(scale_codes(row[None], levels))
    every = np.repeat(row[None], 2**NOISE_BITS, axis=0)
    codes = quantise(
        every, np.repeat(scales, len(every)), levels, EveryNoise(levels + 1)
    )
    means = (codes.reshape(every.shape).mean(axis=0) - levels - 1) * float(scales[0])
    bias = np.abs(means - row.astype(np.float64)) / scales[0]
    assert bias.max() <= 2.0 ** -(NOISE_BITS + 1) + 2e-5 * (bits == 8) + 2e-6
    assert means[62] == 0


@both_sizes
def test_the_mean_over_seeds_is_the_numbers(bits):
    values, scheme, runs = heavy(640), Blocks(bits), 400
    found = [there_and_back(scheme, values, True, seed) for seed in range(runs)]
    single = np.mean([relative_error(each, values) for each in found])
    assert relative_error(np.mean(found, axis=0), values) < 1.3 * single / runs


@pytest.mark.parametrize(
    ("bits", "block", "nearest"),
    [(4, 64, 0.0115), (4, 128, 0.0140), (8, 64, 0.0115 / 18.14**2)],
)
def test_the_error_on_normal_numbers_is_that_of_theory(bits, block, nearest):
    # A step squared over 12 for the nearest, over 6 for one of two at random: steps are
    # the expected largest of so many normal numbers over the levels, rounded up.
    values, scheme = normal(2**18), Blocks(bits, block)
    assert relative_error(there_and_back(scheme, values), values) == pytest.approx(
        nearest, rel=0.05
    )
    assert relative_error(there_and_back(scheme, values, True), values) == (
        pytest.approx(2 * nearest, rel=0.05)
    )


@pytest.mark.parametrize(
    "wrong", [{"bits": 2}, {"bits": 4.0}, {"bits": True}, {"block": 48}, {"block": 4}]
)
def test_what_is_no_scheme_is_refused(wrong):
    (name,) = wrong
    with pytest.raises(ConfigError, match=f"{name}={wrong[name]!r} must be"):
        Blocks(**wrong)


def packed(bits, values):
    return bytearray(Blocks(bits, 8).pack(np.float32(values), 0, unbiased=False))


@both_sizes
def test_a_code_below_the_levels_is_refused(bits):
    for place, code in ((2, 0x00), (2, 0xF0), (3, 0x0F)):
        if bits == 8 and code:
            continue
        payload = packed(bits, np.arange(8))
        payload[place] = code
        with pytest.raises(ValueError, match="none of the levels"):
            Blocks(bits, 8).unpack(bytes(payload), 8, 0)


def test_a_number_behind_the_last_one_is_refused():
    payload = packed(4, [1, 2, 3])
    payload[-1] ^= 0x10
    with pytest.raises(ValueError, match="behind the last"):
        Blocks(4, 8).unpack(bytes(payload), 3, 0)


@both_sizes
@pytest.mark.parametrize(
    "scale", [0xFFFF, 0xFF00, 0xFF01, 0xFEFF, 0x00FF, 0x0001], ids=hex
)
def test_a_scale_that_no_block_has_is_refused(bits, scale):
    payload = packed(bits, np.arange(8))
    payload[:2] = scale.to_bytes(2, "big")
    with pytest.raises(ValueError, match="scale"):
        Blocks(bits, 8).unpack(bytes(payload), 8, 0)


@both_sizes
def test_numbers_in_a_block_of_scale_zero_are_refused(bits):
    payload = packed(bits, np.arange(16))
    payload[1] = payload[3] = 0  # the second block's scale
    with pytest.raises(ValueError, match="scale 0"):
        Blocks(bits, 8).unpack(bytes(payload), 16, 0)
