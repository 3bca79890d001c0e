"""What every scheme does, whatever the numbers are."""

import tracemalloc
import zlib

import hypothesis.extra.numpy as arrays
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nightly import examples
from tests.wire.codec.samples import (
    COUNTS,
    LARGEST,
    SCHEMES,
    SMALLEST,
    SPECS,
    heavy,
    normal,
    one_hot,
)

every_scheme = pytest.mark.parametrize("spec", SPECS)
both = pytest.mark.parametrize("unbiased", [True, False])
FLOATS = arrays.arrays(
    np.float32,
    st.integers(0, 300),
    elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
)


def there_and_back(spec, values, seed=3, unbiased=False):
    scheme = SCHEMES[spec]
    data = scheme.encode(values, seed, unbiased=unbiased)
    assert len(data) <= scheme.most_bytes(values.size)
    return scheme.decode(data, values.size, seed)


@every_scheme
@both
def test_every_count_comes_back_finite_and_owned(spec, unbiased):
    for count in COUNTS:
        found = there_and_back(spec, normal(count), unbiased=unbiased)
        assert (found.shape, found.dtype) == ((count,), np.float32)
        assert np.isfinite(found).all()
        assert found.flags.owndata
        assert found.flags.writeable


@every_scheme
@both
def test_zeros_stay_zeros_where_a_scheme_says_so(spec, unbiased):
    values = normal(4096)
    values[50:] = 0  # top25% keeps some of them
    zeros = there_and_back(spec, values, unbiased=unbiased)[50:]
    assert SCHEMES[spec].keeps_zeros == (not zeros.any())


@every_scheme
@both
def test_the_most_bytes_are_those_of_numbers_that_zstd_cannot_shorten(spec, unbiased):
    # So few that no frame is shorter.
    for count in (1, 5, 40):
        data = SCHEMES[spec].encode(normal(count), 0, unbiased=unbiased)
        assert data[0] == 0
        sizes = SCHEMES[spec].payload_sizes(count)
        assert len(data) - 1 in sizes
        assert SCHEMES[spec].most_bytes(count) == 1 + sizes[-1]


@every_scheme
def test_the_same_seed_gives_the_same_bits_and_another_one_others(spec):
    scheme, values = SCHEMES[spec], normal(5000)
    data = scheme.encode(values, 7, unbiased=True)
    assert scheme.encode(values.copy(), 7, unbiased=True) == data
    assert scheme.encode(values, 8, unbiased=True) != data
    first, again = (scheme.decode(data, values.size, 7) for _ in range(2))
    assert first.tobytes() == again.tobytes()


@every_scheme
@both
def test_zeros_stay_exact_zeros(spec, unbiased):
    for count in COUNTS:
        found = there_and_back(spec, np.zeros(count, np.float32), 5, unbiased)
        assert found.tobytes() == bytes(4 * count)


@every_scheme
@both
@pytest.mark.parametrize("size", [LARGEST, 1e30, 1e-8, 1e-30, 1e-37, 1e-42, SMALLEST])
def test_numbers_of_any_size_stay_finite_and_near(spec, unbiased, size):
    for values in (normal(700), heavy(700), one_hot(700), np.ones(700, np.float32)):
        exact = values.astype(np.float64)
        scaled = (exact / np.abs(exact).max() * size).astype(np.float32)
        found = np.abs(there_and_back(spec, scaled, unbiased=unbiased).astype(float))
        assert np.isfinite(found).all()
        # Float32 itself has few bits left below 1e-38.
        assert found.max() <= max(6 * size, 1e-43)
        assert found.max() >= size / 10 or size < 1e-38


@every_scheme
@both
def test_a_processor_that_takes_subnormal_numbers_for_zeros(spec, unbiased):
    for smallest in (1e-44, 1e-40, 1e-39, 1e-38):
        # From block to block they grow a hundredfold in all.
        sizes = smallest * np.geomspace(1, 100, 700)
        values = (normal(700) * sizes).astype(np.float32)
        if not torch.set_flush_denormal(True):
            pytest.skip("this processor has no such mode")
        try:
            data = SCHEMES[spec].encode(values, 0, unbiased=unbiased)
        finally:
            torch.set_flush_denormal(False)
        found = SCHEMES[spec].decode(data, 700, 0)
        assert np.abs(found.astype(float)).max() < 1000 * smallest + 1e-37


@every_scheme
@both
@given(values=FLOATS, seed=st.integers(0, 2**63 - 1))
@settings(deadline=None, max_examples=examples(30))
def test_any_finite_numbers_come_back_finite(spec, unbiased, values, seed):
    found = there_and_back(spec, values, seed, unbiased)
    assert np.isfinite(found).all()


@every_scheme
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("count", [1, 9, 3000])
def test_numbers_that_are_not_finite_are_refused(spec, wrong, count):
    values = normal(count)
    values[count // 2] = wrong
    with pytest.raises(ValueError, match="NaN or infinity"):
        SCHEMES[spec].encode(values, 0, unbiased=True)


@every_scheme
@pytest.mark.parametrize(
    "values",
    [
        np.zeros(4),
        np.zeros((2, 2), np.float32),
        np.zeros(8, np.float32)[::2],
        np.zeros(4, ">f4"),
        np.float32(1).reshape(()),
    ],
    ids=["double", "matrix", "strided", "big endian", "scalar"],
)
def test_what_is_no_flat_tensor_of_float32_is_refused(spec, values):
    with pytest.raises(ValueError, match="not flat and contiguous float32"):
        SCHEMES[spec].encode(values, 0, unbiased=True)


@every_scheme
@both
def test_the_numbers_are_only_read(spec, unbiased):
    values = normal(3000)
    values.flags.writeable = False
    before = values.tobytes()
    SCHEMES[spec].encode(values, 0, unbiased=unbiased)
    assert values.tobytes() == before


# Of the payloads, without the scales of rotated vectors, whose last bit may depend on
# the machine: a change of format is to be one on purpose.
CHECKSUMS = {
    "q8": (0, 0x31395919),
    "q4": (0, 0x64A98E74),
    "q2": (24 * 4, 0xD790FC49),
    "q1": (24 * 4, 0x2E81FAF2),
    "top10%+q4": (0, 0x1ED26E59),
    "top1%+q8": (0, 0x7EC9D050),
}


@pytest.mark.parametrize("spec", CHECKSUMS)
def test_payloads_have_not_changed(spec):
    scheme, (start, checksum) = SCHEMES[spec], CHECKSUMS[spec]
    # Exact in float32, and so are all sums of them.
    values = ((np.arange(3000) * 7919 % 257 - 128) / 64).astype(np.float32)
    payload = scheme.pack(values, 11, unbiased=True)
    assert zlib.crc32(payload[start:]) == checksum


@every_scheme
def test_another_count_is_refused(spec):
    data = SCHEMES[spec].encode(normal(1000), 0, unbiased=True)
    for count in (0, 1, 500, 800, 1200, 2000, 10**9):
        with pytest.raises(ValueError, match="bytes"):
            SCHEMES[spec].decode(data, count, 0)


@every_scheme
def test_no_memory_is_spent_on_what_is_refused_for_its_size(spec):
    data = SCHEMES[spec].encode(normal(100), 0, unbiased=True)
    tracemalloc.start()
    with pytest.raises(ValueError, match="payload has"):
        SCHEMES[spec].decode(data, 10**10, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@every_scheme
def test_decoding_spends_little_more_than_the_numbers_need(spec):
    count = 2**20
    data = SCHEMES[spec].encode(normal(count), 0, unbiased=True)
    tracemalloc.start()
    SCHEMES[spec].decode(data, count, 0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * 4 * count
