"""What aggregators that step every K updates have in common."""

import numpy as np
import pytest
import torch

from flwr_asyncdrop.aggregation import (
    AdaptivePerGroup,
    Buffered,
    LatestPerGroup,
    ProductBuffered,
    combiner,
)
from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from tests.aggregation.adapters import part, random_state, update


def adaptive(size, **options):
    mean = combiner("mean", 1, normaliser="counts")
    return AdaptivePerGroup(size, combine_fresh=mean, **options)


KINDS = pytest.mark.parametrize(
    "kind", [AdaptivePerGroup, Buffered, LatestPerGroup, ProductBuffered]
)


def made(kind, size, **options):
    return (adaptive if kind is AdaptivePerGroup else kind)(size, **options)


def one_update(seed):
    return update(random_state(seed), base=random_state(seed + 1))


@KINDS
@pytest.mark.parametrize("two", [2, 2.0, np.int64(2), torch.tensor(2)])
@pytest.mark.parametrize("waits", [False, True])
def test_a_size_is_a_whole_number_of_any_kind(kind, two, waits):
    aggregator, state = made(kind, two, waits=waits), random_state(0)
    numbers = aggregator.size, aggregator.updates_per_version, aggregator.waits_for
    assert numbers == (2, 2, 2 if waits else 1)
    assert [type(number) for number in numbers] == [int] * 3
    assert type(aggregator.collects) is int
    assert [aggregator.merge(state, one_update(n)) for n in range(4)] == [
        False,
        True,
    ] * 2


@pytest.mark.parametrize("groups", [4.0, np.int64(4), torch.tensor(4)])
@pytest.mark.parametrize("kind", [AdaptivePerGroup, LatestPerGroup])
def test_groups_are_a_whole_number_of_any_kind(kind, groups):
    aggregator, state = made(kind, 1, num_groups=groups), random_state(0)
    sent = update(random_state(1), base=random_state(2), rank=7, num_ranks=8)
    assert aggregator.merge(state, sent) is True
    assert aggregator.group_of(sent) == 3
    assert type(aggregator.groups_of(sent)) is int


@KINDS
@pytest.mark.parametrize("size", [0, 1.5, float("inf"), "2", None])
def test_another_size_is_refused(kind, size):
    with pytest.raises(ConfigError, match="buffer_size"):
        made(kind, size)


@KINDS
def test_who_waits_is_a_switch(kind):
    with pytest.raises(ConfigError, match="waits"):
        made(kind, 2, waits="false")


@KINDS
def test_a_step_may_come_with_fewer_updates_and_not_with_none(kind):
    aggregator, state = made(kind, 3), random_state(0)
    before = {name: tensor.clone() for name, tensor in state.items()}
    assert aggregator.flush(state) is False
    assert aggregator.merge(state, one_update(1)) is False
    assert all(torch.equal(state[name], before[name]) for name in state)
    assert aggregator.flush(state) is True
    assert aggregator.flush(state) is False
    assert any(not torch.equal(state[name], before[name]) for name in state)


@KINDS
def test_what_does_not_fit_is_not_collected(kind):
    aggregator, state = made(kind, 1), random_state(0)
    with pytest.raises(ShapeError):
        aggregator.merge(state, update(part(random_state(1), [0])))
    assert aggregator.flush(state) is False
