"""Compiled merge and sum: they give the bits that NumPy and torch give without."""

import errno
import sys

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.submodel import add_, extract, fused, merge_

DTYPES = (torch.float32, torch.float64)


@pytest.fixture
def without_numba(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    fused.compiled.cache_clear()
    yield
    fused.compiled.cache_clear()


@st.composite
def kept_positions(draw, size):
    return torch.tensor(sorted(draw(st.sets(st.integers(0, size - 1)))), dtype=int)


@st.composite
def merges(draw):
    """Draw a full tensor, a submodel's, the kept positions and a weight."""
    sizes = draw(st.lists(st.integers(1, 33), min_size=1, max_size=4))
    dims = draw(st.sets(st.integers(0, min(len(sizes), 2) - 1), min_size=1))
    kept = {dim: draw(kept_positions(sizes[dim])) for dim in dims}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    dtype = draw(st.sampled_from(DTYPES))
    full = torch.randn(sizes, generator=generator, dtype=dtype)
    other = torch.randn(sizes, generator=generator, dtype=dtype)
    sub = extract({"w": other}, {"w": kept})["w"]
    weight = draw(st.floats(0, 1, exclude_max=True, width=32))
    return full, sub, kept, weight


def merged(full, sub, kept, weight):
    state = {"w": full.clone()}
    merge_(state, {"w": sub}, {"w": kept}, weight)
    return state["w"].view(torch.uint8)


@given(merges())
@settings(deadline=None)
def test_the_same_bits_with_and_without(case):
    pytest.importorskip("numba")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "compiled", lambda: None)
        expected = merged(*case)
    full, sub, kept, weight = case
    assert torch.equal(merged(*case), expected)
    assert fused.fused_mix_(full, sub, kept, weight, {})
    assert torch.equal(full.view(torch.uint8), expected)


ONE = (torch.tensor([0.8173]), torch.tensor([0.3465]), {0: torch.tensor([0])}, 0.0)


@example(ONE, 1.5625)  # PyTorch rounds twice
@given(merges(), st.floats(-2, 2))
@settings(deadline=None)
def test_a_sum_has_the_same_bits_with_and_without(case, scale):
    pytest.importorskip("numba")
    full, part, kept, _ = case
    expected, found = full.clone(), full.clone()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "compiled", lambda: None)
        add_(expected, part, kept, scale)
    add_(found, part, kept, scale)
    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8))
    is_compiled = fused.fused_add_(full, part, kept, scale)
    assert is_compiled == (1 in kept)
    if is_compiled:
        assert torch.equal(full.view(torch.uint8), expected.view(torch.uint8))


def test_sums_of_a_large_tensor_are_compiled(monkeypatch):
    """Else they would take five times as long, with the same bits."""
    pytest.importorskip("numba")
    monkeypatch.setattr("flwr_asyncdrop.submodel.transfer.Slots", None)
    full, kept = torch.zeros(4, 3, 3), {0: torch.tensor([1]), 1: torch.tensor([0, 2])}
    add_(full, torch.ones(1, 2, 3), kept, 0.5)
    assert full.sum() == 3


def test_a_numba_whose_library_cannot_be_loaded_is_none(monkeypatch):
    """The first merge ended the run in an OSError."""

    class NoLibrary:
        def find_spec(self, name, path=None, target=None):
            if name == "numba":
                raise OSError("cannot load libllvmlite.so: cannot allocate memory")

    monkeypatch.delitem(sys.modules, "numba", raising=False)
    monkeypatch.setattr(sys, "meta_path", [NoLibrary(), *sys.meta_path])
    fused.compiled.cache_clear()
    try:
        assert fused.compiled() is None
    finally:
        fused.compiled.cache_clear()


def test_without_numba_there_is_no_kernel(without_numba):
    full = torch.zeros(4, 3)
    assert fused.compiled() is None
    assert not fused.fused_mix_(full, full[:2], {0: torch.arange(2)}, 0.5, {})
    assert not fused.fused_add_(full, full[:2], {0: torch.arange(2)}, 0.5)
    assert not full.any()


@pytest.mark.parametrize(
    ("full", "dims", "weight"),
    [
        (torch.zeros(4, 4), {}, 0.5),
        (torch.zeros(4, 4), {0: torch.arange(4)}, 1.0),
        (torch.zeros(4, 4, 4), {2: torch.arange(4)}, 0.5),
        (torch.zeros(4, 4).half(), {0: torch.arange(4)}, 0.5),
        (torch.zeros(4, 4).t()[:, ::2], {0: torch.arange(4)}, 0.5),
        (torch.zeros(4, 4, device="meta"), {0: torch.arange(4)}, 0.5),
    ],
)
def test_what_the_kernel_cannot_do_is_left_to_others(full, dims, weight):
    assert not fused.fused_mix_(full, full, dims, weight, {})
    assert weight == 1 or not fused.fused_add_(full, full, dims, weight)


def _no_locator(patch, caching):
    """No folder for the cache can be written."""
    patch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])


def _no_room(patch, caching):
    def save(self, key, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(caching.IndexDataCacheFile, "save", save)
    patch.setattr(caching.IndexDataCacheFile, "load", lambda self, key: None)


@pytest.mark.parametrize("lack", [_no_locator, _no_room])
def test_a_disk_that_keeps_nothing_of_what_is_compiled_changes_nothing(lack):
    """Each merge ended the run in a RuntimeError or OSError."""
    caching = pytest.importorskip("numba.core.caching")
    full, kept = torch.zeros(4), torch.tensor([1, 3])
    with pytest.MonkeyPatch.context() as patch:
        lack(patch, caching)
        fused.compiled.cache_clear()
        try:
            assert fused.fused_mix_(full, torch.ones(2), {0: kept}, 0.5, {})
        finally:
            fused.compiled.cache_clear()
    assert full.tolist() == [0, 0.5, 0, 0.5]
