"""Whatever the bytes are, they are refused with a ValueError or are finite numbers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.nightly import examples
from tests.wire.codec.mutations import check, fuzz
from tests.wire.codec.samples import SCHEMES, SPECS


def test_bytes_that_are_nearly_right():
    reasons = fuzz(3000, seed=0)
    # All sorts of checks are reached, and what is another tensor is decoded.
    assert reasons[""] > 300
    assert {
        *("a code is none of the levels'", "there are numbers behind the last one"),
        *("a scale is not finite, or out of range", "a scale is negative"),
        *("a block of scale 0 has other numbers than 0", "it is no zstd frame"),
    } <= set(reasons)


@pytest.mark.parametrize("spec", SPECS)
@given(data=st.binary(max_size=60), count=st.integers(0, 10**12))
@settings(deadline=None, max_examples=examples(50))
def test_any_bytes(spec, data, count):
    check(SCHEMES[spec], data, count, 0)


@pytest.mark.parametrize("spec", SPECS)
def test_random_payloads_of_the_right_size(spec):
    chooser, refused = random.Random(5), 0  # noqa: S311  # a test
    for count in (1, 2, 10, 300) * 10:
        sizes = SCHEMES[spec].payload_sizes(count)
        data = b"\0" + chooser.randbytes(chooser.choice(sizes))
        refused += bool(check(SCHEMES[spec], data, count, 0))
    assert refused
