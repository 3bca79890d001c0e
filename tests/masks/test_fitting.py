from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.exceptions import CapacityError
from flwr_asyncdrop.masks import fit


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def count(keep):
    return sum(len(units) for units in keep)


def product(keep):
    """The size of layers that follow each other, as bytes of a real model go."""
    widths = [3, *(len(units) for units in keep), 2]
    return sum(a * b for a, b in pairwise(widths))


def test_what_fits_stays_as_it_is():
    keep = (torch.tensor([0, 3]), torch.tensor([1, 2, 5]))
    assert fit(keep, count, 5, seeded()) is keep


def test_each_group_gives_the_same_share():
    keep = (torch.arange(100), torch.arange(100, 150))
    assert [len(units) for units in fit(keep, count, 75, seeded())] == [50, 25]


def test_one_unit_of_each_group_is_the_least():
    keep = (torch.arange(9), torch.arange(4))
    assert [len(units) for units in fit(keep, count, 2, seeded())] == [1, 1]
    with pytest.raises(CapacityError, match="smallest submodel has 2 bytes, and 1"):
        fit(keep, count, 1, seeded())


def test_a_group_that_needs_more_units_keeps_them():
    keep = (torch.arange(9), torch.arange(4))
    assert [len(u) for u in fit(keep, count, 4, seeded(), [1, 2])] == [2, 2]
    with pytest.raises(CapacityError, match="smallest submodel has 3 bytes, and 2"):
        fit(keep, count, 2, seeded(), [1, 2])


def test_a_model_without_groups_fits_or_not():
    assert fit((), lambda _: 5, 5, seeded()) == ()
    with pytest.raises(CapacityError):
        fit((), lambda _: 5, 4, seeded())


KEEPS = st.lists(
    st.sets(st.integers(0, 40), min_size=1).map(lambda s: torch.tensor(sorted(s))),
    min_size=1,
    max_size=4,
).map(tuple)


@given(KEEPS, st.sampled_from([count, product]), st.integers(0, 900), st.integers(0, 3))
def test_it_is_a_subset_that_fits_and_one_more_share_would_not(
    keep, size_of, most, seed
):
    try:
        fitting = fit(keep, size_of, most, seeded(seed))
    except CapacityError:
        assert size_of(tuple(units[:1] for units in keep)) > most
        return
    assert size_of(fitting) <= most
    for units, kept in zip(keep, fitting, strict=True):
        assert len(kept) >= 1
        assert kept.tolist() == sorted(set(kept.tolist()))
        assert set(kept.tolist()) <= set(units.tolist())
    longest = max(len(units) for units in keep)
    counts = [len(kept) for kept in fitting]
    # Naive: the largest share of all that fits.
    shares = [
        [max(len(units) * n // longest, 1) for units in keep]
        for n in range(1, longest + 1)
    ]
    sizes = [
        size_of(tuple(u[:n] for u, n in zip(keep, ns, strict=True))) for ns in shares
    ]
    assert counts == max(
        (ns for ns, size in zip(shares, sizes, strict=True) if size <= most), key=sum
    )
    assert [k.tolist() for k in fit(keep, size_of, most, seeded(seed))] == [
        k.tolist() for k in fitting
    ]
