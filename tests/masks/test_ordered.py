"""Ordered dropout by hand."""

import pytest
import torch

from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import GradedRate, OrderedMask, RandomMask
from flwr_asyncdrop.submodel import UnitGroup
from tests.masks.choosing import choose

GROUPS = (UnitGroup("a", 16, "internal"), UnitGroup("b", 5, "internal"))


def widths(mask, ranks=8):
    generator = torch.Generator().manual_seed(0)
    kept = [choose(mask, GROUPS, None, rank, ranks, generator) for rank in range(ranks)]
    for keep in kept:
        assert all(k.tolist() == list(range(len(k))) for k in keep), "not the first"
    return [tuple(len(k) for k in keep) for keep in kept]


def test_by_hand():
    # rates 0, 1/14, ..., 7/14: of 16 units int(16 rate) go, of 5 units int(5 rate)
    assert widths(OrderedMask(0.25)) == [
        (16, 5), (15, 5), (14, 5), (13, 4), (12, 4), (11, 4), (10, 3), (8, 3),
    ]  # fmt: skip


def test_the_faster_the_wider_and_each_within_the_next():
    got = widths(OrderedMask(0.4))
    assert got == sorted(got, reverse=True)
    assert got[0] == (16, 5)
    assert min(got[-1]) >= 1


def test_the_mean_rate_is_the_drop_rate():
    rates = [GradedRate(0.3).of(rank, 8).rate for rank in range(8)]
    assert sum(rates) / 8 == pytest.approx(0.3)
    assert (rates[0], rates[-1]) == (0.0, pytest.approx(0.6))
    assert GradedRate(0.3).of(0, 1).rate == 0.3


def test_a_spread_of_a_third_by_hand():
    rates = [GradedRate(0.45, spread=1 / 3).of(rank, 3).rate for rank in range(3)]
    assert rates == pytest.approx([0.3, 0.45, 0.6])
    assert GradedRate(0.45, spread=0.0).of(2, 3).rate == 0.45
    with pytest.raises(ConfigError, match="spread=2"):
        GradedRate(0.45, spread=2)


def test_random_masks_can_have_the_same_widths():
    mask, generator = RandomMask(0.25, spread=1.0), torch.Generator().manual_seed(0)
    kept = [choose(mask, GROUPS, None, rank, 8, generator) for rank in range(8)]
    for keep, fixed in zip(kept, widths(OrderedMask(0.25)), strict=True):
        for units, width in zip(keep, fixed, strict=True):
            assert width - len(units) in (0, 1)  # chance may round the rest away
    assert any(keep[0].tolist() != list(range(len(keep[0]))) for keep in kept)


def test_dropping_nothing_keeps_all():
    assert widths(OrderedMask(0.0)) == [(16, 5)] * 8


@pytest.mark.parametrize("rate", [-0.1, 0.5, float("nan")])
def test_a_rate_that_would_leave_the_slowest_nothing_is_refused(rate):
    with pytest.raises(ConfigError, match=f"drop.rate.*{rate}"):
        OrderedMask(rate)
