"""Trimmed means and medians by hand, and against a naive reference."""

import statistics
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import (
    COMBINATIONS,
    Buffered,
    LatestPerGroup,
    Update,
    combiner,
    weighting,
)
from flwr_asyncdrop.aggregation.robust import num_cut, trimmed_mean
from flwr_asyncdrop.exceptions import ConfigError
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract
from tests.aggregation.two_layers import PLAN, random_state
from tests.masks.choosing import choose

MEDIAN = combiner("median", 5)
TRIMMED = combiner("trimmed-mean", 5)


def one(values):
    return {"w": torch.tensor(values)}


def update(change, kept=None, staleness=0, rank=0, base=1.0):
    """An update that asks for a change of these kept coordinates."""
    indices = {} if kept is None else {"w": {0: torch.tensor(kept)}}
    sent = [base] * len(change)
    local = [base + each for each in change]
    return Update(one(local), indices, staleness, 1, one(sent), rank=rank, num_ranks=5)


def step(combine, *updates, state=None, **options):
    state = one([0.0] * 3) if state is None else state
    buffer = Buffered(len(updates), combine=combine, **options)
    assert [buffer.merge(state, each) for each in updates][-1]
    return state["w"].tolist()


class TestByHand:
    CHANGES = ([1.0, 5.0, 0.0], [2.0, 4.0, 0.0], [3.0, 3.0, 3.0], [4.0, 2.0, 9.0])

    def test_a_median_is_the_middle_one_or_the_mean_of_two(self):
        updates = [update(change) for change in self.CHANGES]
        assert step(MEDIAN, *updates) == [2.5, 3.5, 1.5]
        assert step(MEDIAN, *updates, update([1e9, -1e9, 1e9])) == [3.0, 3.0, 3.0]

    def test_a_trimmed_mean_leaves_the_extremes_out(self):
        """A fifth of five is one at each end."""
        updates = [update(change) for change in self.CHANGES]
        assert step(TRIMMED, *updates, update([1e9, -1e9, 1e9])) == [3.0, 3.0, 4.0]

    def test_a_fifth_of_four_is_one_too(self):
        updates = [update(change) for change in self.CHANGES]
        assert step(TRIMMED, *updates) == [2.5, 3.5, 1.5]

    def test_a_coordinate_is_combined_over_those_that_trained_it(self):
        """Not over zeros of those that did not."""
        updates = [
            update([1.0, 10.0], kept=[0, 1]),
            update([2.0, 30.0], kept=[0, 1]),
            update([3.0], kept=[0]),
            update([99.0], kept=[0]),
        ]
        state = one([0.0, 0.0, 7.0])
        assert step(MEDIAN, *updates, state=state) == [2.5, 20.0, 7.0]

    def test_a_change_counts_as_much_as_its_weight(self):
        """Half of 8 at staleness 3, before they are sorted."""
        updates = [update([5.0]), update([1.0]), update([8.0], staleness=3)]
        weigh = weighting("polynomial", 0.5)
        assert step(MEDIAN, *updates, state=one([0.0]), weighting=weigh) == [4.0]

    def test_the_server_steps_with_it(self):
        updates = [update([4.0])] * 3
        assert step(MEDIAN, *updates, state=one([0.0]), server_lr=0.5) == [2.0]

    def test_running_statistics_take_that_of_the_values_and_counters_the_middle(self):
        name, counter = "bn.running_var", "bn.num_batches_tracked"
        state = {name: torch.tensor([9.0, 9.0]), counter: torch.tensor(5)}
        stale = weighting("polynomial", 0.5)  # a half each, of changes alone
        buffer = Buffered(3, combine=MEDIAN, server_lr=3.0, weighting=stale)
        for value, count in ((1.0, 6), (2.0, 8), (1e6, 2**62)):
            arrays = {name: torch.tensor([value]), counter: torch.tensor(count)}
            indices = {name: {0: torch.tensor([0])}}
            buffer.merge(state, Update(arrays, indices, 3, 1, arrays))
        assert state[name].tolist() == [2.0, 9.0]
        assert state[counter].item() == 8

    def test_of_an_even_number_of_counters_the_lower_middle_counts(self):
        counter = "bn.num_batches_tracked"
        state = {counter: torch.tensor(5)}
        buffer = Buffered(4, combine=MEDIAN)
        for count in (12, 8, 6, 9):
            arrays = {counter: torch.tensor(count)}
            buffer.merge(state, Update(arrays, {}, 0, 1, arrays))
        assert state[counter].item() == 8

    def test_a_counter_never_goes_back(self):
        counter = "bn.num_batches_tracked"
        state = {counter: torch.tensor(5)}
        buffer = Buffered(3, combine=MEDIAN)
        for count in (1, 2, 9):
            arrays = {counter: torch.tensor(count)}
            buffer.merge(state, Update(arrays, {}, 0, 1, arrays))
        assert state[counter].item() == 5

    def test_complex_numbers_are_combined_part_by_part(self):
        state = {"w": torch.tensor([0j])}
        buffer = Buffered(3, combine=MEDIAN)
        for change in (1 + 9j, 2 - 5j, 1e9 + 1j):
            buffer.merge(
                state, Update(one([change]), {}, 0, 1, {"w": torch.tensor([0j])})
            )
        assert state["w"].tolist() == [2 + 1j]

    def test_complex_statistics_are_too(self):
        state = {"bn.running_mean": torch.tensor([7j, 7j])}
        buffer = Buffered(3, combine=MEDIAN)
        for value in (1 + 9j, 2 - 5j, 1e9 + 1j):
            arrays = {"bn.running_mean": torch.tensor([value])}
            dims = {"bn.running_mean": {0: torch.tensor([0])}}
            buffer.merge(state, Update(arrays, dims, 0, 1, arrays))
        assert state["bn.running_mean"].tolist() == [2 + 1j, 7j]

    def test_remembered_changes_are_combined_too(self):
        state = one([0.0])
        memory = LatestPerGroup(3, combine=MEDIAN)
        for rank, change in enumerate((1.0, 2.0, 1e9)):
            changed = memory.merge(state, update([change], rank=rank))
        assert changed
        assert state["w"].item() == 2.0


@pytest.mark.parametrize(
    ("count", "trim", "cut"),
    [
        (5, 0.2, 1),
        (10, 0.2, 2),
        (100, 0.07, 7),
        (100, 0.29, 29),
        (4, 0.2, 1),
        (3, 0.01, 1),
        (9, 0.0, 0),
        (2, 0.4, 0),
        (1, 0.4, 0),
        (0, 0.4, 0),
        (6, 0.49, 2),
        (7, 0.5, 3),
    ],
)
def test_how_many_are_cut(count, trim, cut):
    assert num_cut(count, trim) == cut


values = st.one_of(st.floats(-1e3, 1e3, width=32), st.just(inf))


@given(
    st.integers(1, 9).flatmap(
        lambda n: st.lists(st.lists(values, min_size=n, max_size=n), max_size=5)
    ),
    st.sampled_from([0.0, 0.1, 0.2, 0.34, 0.49, 0.5]),
)
def test_each_coordinate_is_that_of_the_naive_reference(columns, trim):
    rows = torch.tensor(columns).T if columns else torch.zeros(3, 0)
    mean, counts = trimmed_mean(rows.contiguous(), trim)
    for column, found, count in zip(columns, mean, counts, strict=True):
        present = sorted(value for value in column if value < inf)
        assert count == len(present)
        cut = num_cut(len(present), trim)
        left = present[cut : len(present) - cut]
        expected = statistics.fmean(left) if left else 0.0
        assert found.item() == pytest.approx(expected, rel=1e-5, abs=1e-3)
        if trim == 0.5 and present:
            median = statistics.median(present)
            assert found.item() == pytest.approx(median, rel=1e-5, abs=1e-3)


@pytest.mark.parametrize("shape", [(), (0,), (70_000,), (3, 40_000), (2, 3, 4, 5)])
def test_many_coordinates_are_as_torch_sorts_them(shape):
    """More than are sorted at once."""
    rows = torch.randn((7, *shape), generator=torch.Generator().manual_seed(0))
    before = rows.clone()
    mean, counts = trimmed_mean(rows, 0.25)
    torch.testing.assert_close(mean, rows.sort(0).values[2:5].mean(0))
    assert mean.shape == counts.shape == shape
    assert bool((counts == 7).all())
    assert torch.equal(rows, before)


@given(st.integers(0, 1000), st.sampled_from([0.0, 0.4, 0.8]))
def test_nothing_trimmed_is_the_mean_over_those_that_trained(seed, rate):
    states = [random_state(seed) for _ in range(2)]
    for state, name in zip(states, ("mean", "trimmed-mean"), strict=True):
        combine = combiner(name, 4, trim=0.0, normaliser="counts")
        buffer = Buffered(4, combine=combine)
        for number in range(4):
            generator = torch.Generator().manual_seed(seed + number)
            keep = choose(RandomMask(rate), PLAN.groups, None, 0, 1, generator)
            indices = PLAN.indices(keep)
            base, local = (
                extract(random_state(seed + number + n), indices) for n in (50, 70)
            )
            buffer.merge(state, Update(local, indices, 0, 1, base))
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor)


@pytest.mark.parametrize("name", ["trimmed-mean", "median"])
@pytest.mark.parametrize("lie", [1e9, -1e9])
def test_one_liar_among_four_cannot_move_the_model_beyond_the_others(name, lie):
    honest = [update([each]) for each in (0.9, 1.0, 1.1)]
    (moved,) = step(combiner(name, 4), *honest, update([lie]), state=one([0.0]))
    assert 0.8 < moved < 1.2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mode", 5), "combine='mode' is not known: choose one of mean, trimmed-mean"),
        (("median", 2), "combine='median' cannot tell the outlier among 2 updates"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        combiner(*arguments)


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("trim", [-0.1, 0.5, float("nan")])
def test_a_share_out_of_range(name, trim):
    with pytest.raises(ConfigError, match=f"trim={trim}"):
        combiner(name, 5, trim=trim)
