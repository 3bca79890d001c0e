"""Overlaps of parts, and inner products: against sets and whole vectors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import overlap
from flwr_asyncdrop.aggregation.overlap import (
    Overlaps,
    inner_product,
    part_at,
    squared_length,
)

SHAPE = (3, 4, 2)
DIMS = st.dictionaries(
    st.integers(0, 2), st.sets(st.integers(0, 1)).map(sorted), max_size=3
)


def tensors(dims):
    return {dim: torch.tensor(kept, dtype=torch.int64) for dim, kept in dims.items()}


@given(DIMS, DIMS)
def test_the_overlap_is_what_both_have(first, second):
    """Every coordinate is its own number; so sets say what is in both."""
    full = torch.arange(24).view(SHAPE)
    one, other = (part_at(full, tensors(dims)) for dims in (first, second))
    both = Overlaps().of(tensors(first), tensors(second))
    found = part_at(full, both.full)
    assert found.flatten().tolist() == sorted(
        set(one.flatten().tolist()) & set(other.flatten().tolist())
    )
    assert torch.equal(part_at(one, both.first), found)
    assert torch.equal(part_at(other, both.second), found)


def test_index_tensors_that_tensors_share_are_compared_once(monkeypatch):
    kept, last = torch.tensor([0, 2, 3]), torch.tensor([1, 2, 3])
    overlaps = Overlaps()
    before = overlaps.of({0: kept}, {0: last})
    monkeypatch.setattr(overlap, "np", None)
    after = overlaps.of({1: kept}, {1: last})
    assert before.full[0] is after.full[1]
    assert after.full[1].tolist() == [2, 3]
    assert (after.first[1].tolist(), after.second[1].tolist()) == ([1, 2], [1, 2])


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.complex64])
def test_inner_products_of_blocks(monkeypatch, length, dtype):
    monkeypatch.setattr(overlap, "_BLOCK", 8)
    torch.manual_seed(0)
    one, other = torch.randn(2, length).to(dtype)
    wide = [overlap.as_real(each).flatten().double() for each in (one, other)]
    assert inner_product(one, other) == pytest.approx(float(wide[0].dot(wide[1])))
    assert squared_length(one) == pytest.approx(float(wide[0].dot(wide[0])))


def test_small_terms_of_large_sums_count():
    """In float32 they would not: 1e8 has a rounding error of 4."""
    one = torch.ones(1001)
    one[0] = 1e4
    assert squared_length(one) == inner_product(one, one.clone()) == 1e8 + 1000
