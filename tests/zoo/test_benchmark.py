"""The table of the zoo is made of what is measured."""

import pytest

from benchmarks.zoo import Row, markdown, measure
from tests.zoo.catalogue import HAND_WRITTEN


def test_row_of_a_model_with_parts_that_stay_whole():
    row = measure("data_dependent", HAND_WRITTEN["data_dependent"])

    # 784 x 256 and 256 x 64 weights, of which the 256 in between can be halved.
    whole = 64 + 2 * (64 * 128 + 128) + 128 * 10 + 10
    weights = 784 * 256 + 256 + 256 * 64
    assert row.parameters == weights + whole
    assert row.share == pytest.approx(weights / row.parameters)
    assert row.bytes_ratios == pytest.approx(
        tuple((kept * weights + whole) / row.parameters for kept in (0.75, 0.5))
    )
    assert len(row.step_ratios) == 2
    assert min(row.step_ratios) > 0
    assert "a Python value was read from the data" in row.whole


def test_table():
    row = Row("net", 1_234_567, 0.98, (0.56, 0.25), (0.6, 0.312), 0.5, "1 head")

    assert markdown([row]).splitlines()[-1] == (
        "| `net` | 1.23 M | 98% | 0.56 / 0.25 | 0.60 / 0.31 | 0.50 s | 1 head |"
    )
