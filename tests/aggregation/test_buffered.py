"""Buffered aggregation by hand, against a naive reference, and its equivalences."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import (
    Buffered,
    Mixing,
    Update,
    change_of,
    combiner,
    mean_change,
    weighting,
)
from flwr_asyncdrop.aggregation.changes import Mean
from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.masks import RandomMask
from flwr_asyncdrop.submodel import extract
from tests.aggregation.two_layers import PLAN, random_state
from tests.masks.choosing import choose
from tests.nightly import examples


def mean(normaliser):
    return combiner("mean", 1, normaliser=normaliser)


def one(values):
    return {"w": torch.tensor(values)}


def update(local, base, staleness=0, examples=1, indices=None, **late):
    return Update(one(local), indices or {}, staleness, examples, one(base), **late)


def keep(*positions):
    return {"w": {0: torch.tensor(positions)}}


def random_update(seed, rate=0.5, staleness=0, examples=1):
    generator = torch.Generator().manual_seed(seed)
    policy = RandomMask(rate)
    indices = PLAN.indices(choose(policy, PLAN.groups, None, 0, 1, generator))
    base, local = (extract(random_state(seed + n), indices) for n in (1000, 2000))
    return Update(local, indices, staleness, examples, base)


def feed(aggregator, state, *updates):
    return [aggregator.merge(state, each) for each in updates]


class TestByHand:
    def test_fedbuff_takes_the_change_against_what_was_sent(self):
        """Not against the model of today, which has moved on."""
        state = one([10.0, 20.0])
        buffer = Buffered(2, weighting=weighting("polynomial", 0.5))
        first = update([3.0, 1.0], base=[1.0, 1.0], staleness=0)  # +2, 0; weight 1
        second = update([0.0, 8.0], base=[4.0, 0.0], staleness=3)  # -4, +8; weight 1/2
        assert buffer.merge(state, first) is False
        assert state["w"].tolist() == [10.0, 20.0]
        assert buffer.merge(state, second) is True
        # 10 + (2 - 2) / 2, 20 + (0 + 4) / 2
        assert state["w"].tolist() == [10.0, 22.0]

    @pytest.mark.parametrize(("normaliser", "moved"), [("size", 4), ("examples", 5)])
    def test_a_discount_is_a_factor_on_the_weight(self, normaliser, moved):
        state = one([0.0])
        buffer = Buffered(2, combine=mean(normaliser))
        late = update([4.0], [0.0], discount=0.5)
        feed(buffer, state, late, update([6.0], [0.0], examples=3))
        # (4 / 2 + 6) / 2, or by examples (4 / 2 + 3 * 6) / 4
        assert state["w"].item() == moved

    def test_a_buffer_starts_empty_again(self):
        state = one([0.0])
        buffer = Buffered(2)
        changed = feed(buffer, state, *[update([1.0], [0.0])] * 4)
        assert changed == [False, True, False, True]
        assert state["w"].item() == 2.0

    def test_fedavg_weighs_by_examples(self):
        state = one([1.0])
        cohort = Buffered(2, combine=mean("examples"), waits=True)
        feed(
            cohort,
            state,
            update([5.0], [1.0], examples=3),
            update([1.0], [1.0], examples=1),
        )
        assert state["w"].item() == 4.0  # (3 * 5 + 1 * 1) / 4

    def test_learning_rate_and_momentum_of_the_server(self):
        state = one([0.0])
        buffer = Buffered(1, server_lr=0.5, momentum=0.5)
        feed(buffer, state, *[update([4.0], [0.0])] * 3)
        # V = 4, 6, 7; W = 0.5 * (4 + 6 + 7)
        assert state["w"].item() == 8.5

    def test_size_divides_by_k_and_counts_by_those_that_trained_a_coordinate(self):
        updates = [
            update([4.0, 2.0], [0.0, 0.0], indices=keep(0, 1)),
            update([8.0], [0.0], indices=keep(0)),
        ]
        for normaliser, expected in (("size", [6.0, 1.0, 0.0]), ("counts", [6, 2, 0])):
            state = one([0.0, 0.0, 0.0])
            feed(Buffered(2, combine=mean(normaliser)), state, *updates)
            assert state["w"].tolist() == expected

    def test_running_statistics_are_averaged_and_counters_take_the_maximum(self):
        name, counter = "bn.running_var", "bn.num_batches_tracked"
        state = {name: torch.tensor([9.0, 9.0, 9.0]), counter: torch.tensor(5)}
        buffer = Buffered(2, server_lr=3.0, momentum=0.9)
        for values, kept, count in (([1.0, 2.0], [0, 1], 4), ([3.0], [0], 8)):
            arrays = {name: torch.tensor(values), counter: torch.tensor(count)}
            indices = {name: {0: torch.tensor(kept)}}
            base = {key: tensor + 7 for key, tensor in arrays.items()}
            buffer.merge(state, Update(arrays, indices, 0, 1, base))
        assert state[name].tolist() == [2.0, 2.0, 9.0]
        assert state[counter].item() == 8


class TestEquivalences:
    def test_one_that_waits_for_nobody_is_one_that_waits(self):
        states = [random_state(0) for _ in range(2)]
        for state, waits in zip(states, (False, True), strict=True):
            updates = (random_update(seed) for seed in range(5))
            feed(Buffered(1, waits=waits), state, *updates)
        assert_same(*states)

    def test_one_at_a_time_is_mixing_with_rate_one_where_the_base_is_the_model(self):
        """Whole numbers, so that no rounding hides a difference."""
        generator = torch.Generator().manual_seed(0)
        buffered, mixed = one([8.0, -3.0, 5.0]), one([8.0, -3.0, 5.0])
        single, mixing = Buffered(1), Mixing(1.0)
        for _ in range(10):
            local = torch.randint(-99, 99, (3,), generator=generator).float()
            base = {"w": buffered["w"].clone()}
            single.merge(buffered, Update({"w": local}, {}, 0, 1, base))
            mixing.merge(mixed, Update({"w": local}, {}, 0, 1))
            assert_same(buffered, mixed)

    def test_a_cohort_of_equals_is_fedavg_bit_for_bit(self):
        states = [random_state(0) for _ in range(2)]
        for state, normaliser in zip(states, ("size", "examples"), strict=True):
            updates = (random_update(n, rate=0, examples=7) for n in range(8))
            feed(Buffered(8, combine=mean(normaliser)), state, *updates)
        assert_same(*states)

    def test_dropping_nothing_is_the_full_model_bit_for_bit(self):
        states = [random_state(0) for _ in range(2)]
        masked = [random_update(seed, rate=0.0) for seed in range(4)]
        full = [Update(u.arrays, {}, 0, 1, u.base) for u in masked]
        for state, updates in zip(states, (masked, full), strict=True):
            feed(Buffered(4), state, *updates)
        assert_same(*states)


@settings(max_examples=examples(50), deadline=None)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 4),
    rate=st.sampled_from([0.0, 0.3, 0.8]),
    normaliser=st.sampled_from(["size", "examples", "counts"]),
)
def test_a_step_is_that_of_the_naive_reference(seed, size, rate, normaliser):
    updates = [
        random_update(seed + n, rate, staleness=n, examples=n + 1) for n in range(size)
    ]
    state = random_state(seed)
    expected = naive_step(state, updates, normaliser)
    weigh = weighting("polynomial", 0.5)
    buffer = Buffered(size, weighting=weigh, combine=mean(normaliser), server_lr=0.7)
    assert feed(buffer, state, *updates)[-1]
    for name, tensor in expected.items():
        torch.testing.assert_close(state[name], tensor)


@pytest.mark.parametrize("wrong", ["sizes", None, 1])
def test_an_unknown_normaliser_is_refused(wrong):
    """What is divided by nothing would be K times as large."""
    with pytest.raises(ConfigError, match="normaliser"):
        Mean(wrong)
    with pytest.raises(ConfigError, match="normaliser"):
        mean(wrong)
    with pytest.raises(ConfigError, match="normaliser"):
        mean_change(one([0.0]), [change_of(update([1.0], [0.0]))], wrong)


def naive_step(state, updates, normaliser):
    """Coordinate by coordinate, as `mean_change` documents it."""
    examples = sum(update.num_examples for update in updates)
    result = {name: tensor.clone() for name, tensor in state.items()}
    for name, tensor in state.items():
        for place in torch.cartesian_prod(*[torch.arange(n) for n in tensor.shape]):
            index = tuple(torch.atleast_1d(place).tolist())
            step, held = 0.0, 0
            for update in updates:
                dims = update.indices.get(name, {})
                local = []
                for dim, position in enumerate(index):
                    kept = dims.get(dim, torch.arange(tensor.shape[dim])).tolist()
                    if position not in kept:
                        break
                    local.append(kept.index(position))
                else:
                    where = tuple(local)
                    delta = update.arrays[name][where] - update.base[name][where]
                    weight = (1 + update.staleness) ** -0.5
                    if normaliser == "examples":
                        weight *= update.num_examples / examples
                    step += weight * delta.item()
                    held += 1
            divisor = {"size": len(updates), "examples": 1, "counts": max(held, 1)}
            result[name][index] += 0.7 * step / divisor[normaliser]
    return result


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"size": 0}, "buffer_size=0"),
            ({"size": 2, "server_lr": 0.0}, "server_lr=0.0"),
            ({"size": 2, "momentum": 1.0}, "server_momentum=1.0"),
        ],
    )
    def test_values_out_of_range(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            Buffered(**arguments)

    def test_an_update_of_another_shape_is_not_collected(self):
        state = one([2.0])
        buffer = Buffered(1)
        with pytest.raises(ShapeError, match="w has"):
            buffer.merge(state, update([1.0, 2.0], [0.0, 0.0]))
        assert state["w"].item() == 2.0
        buffer.merge(state, update([1.0], [0.0]))
        assert state["w"].item() == 3.0

    def test_an_update_without_its_base(self):
        with pytest.raises(ConfigError, match="a change needs its base"):
            Buffered(1).merge(one([2.0]), Update(one([1.0]), {}, 0, 1))


def assert_same(first, second):
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
