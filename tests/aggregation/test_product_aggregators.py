"""ProductMixing and ProductBuffered: golden values, equivalences, what is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation import (
    Buffered,
    Clipped,
    Mixing,
    ProductBuffered,
    ProductMixing,
    combiner,
    weighting,
)
from flwr_asyncdrop.exceptions import ConfigError, ShapeError, UnsupportedModelError
from tests.aggregation.adapters import (
    HEAD,
    A,
    B,
    components,
    part,
    product,
    random_state,
    state_of,
    update,
)

SEEDS = st.integers(0, 1000)
KEPT = st.sets(st.integers(0, 2), min_size=1).map(sorted)


def matrix(rows):
    return torch.tensor(rows, dtype=torch.float64)


def best(dense, rank):
    u, s, v = torch.linalg.svd(dense)
    return u[:, :rank] @ torch.diag(s[:rank]) @ v[:rank]


class TestMixing:
    def test_golden(self):
        """(1 - 1/4) 1 + 1/4 (-1)(-5) = 2, where mixing the factors gives -0.25."""
        state = state_of(matrix([[1.0]]), matrix([[1.0]]), head=4.0)
        sent = state_of(matrix([[-1.0]]), matrix([[-5.0]]), head=8.0)
        plain = {name: tensor.clone() for name, tensor in state.items()}
        assert ProductMixing(0.25).merge(state, update(sent))
        assert product(state).item() == pytest.approx(2.0)
        assert state[HEAD].tolist() == [5.0, 5.0]
        Mixing(0.25).merge(plain, update(sent))
        assert product(plain).item() == -0.25

    @settings(max_examples=15, deadline=None)
    @given(seed=SEEDS, kept=KEPT, alpha=st.floats(0.01, 1))
    def test_the_product_moves_on_the_kept_components(self, seed, kept, alpha):
        state, other = random_state(seed), random_state(seed + 1)
        before = {name: tensor.clone() for name, tensor in state.items()}
        sent = part(other, kept)
        ProductMixing(alpha).merge(state, update(sent, indices=components(kept)))
        dropped = [n for n in range(3) if n not in kept]
        assert torch.equal(state[A][dropped], before[A][dropped])
        assert torch.equal(state[B][:, dropped], before[B][:, dropped])
        mixed = (1 - alpha) * product(part(before, kept)) + alpha * product(sent)
        torch.testing.assert_close(
            product(part(state, kept)), best(mixed, len(kept)), rtol=1e-7, atol=1e-7
        )

    def test_all_of_it_is_the_update(self):
        state, sent = random_state(0), random_state(1)
        ProductMixing(1.0).merge(state, update(sent))
        torch.testing.assert_close(product(state), product(sent))
        assert torch.equal(state[HEAD], sent[HEAD])

    def test_nothing_of_it_keeps_every_bit(self):
        state, before = random_state(0), random_state(0)
        ProductMixing(0.0).merge(state, update(random_state(1)))
        assert all(torch.equal(state[name], before[name]) for name in state)

    def test_weighting_and_discount(self):
        state = state_of(matrix([[1.0]]), matrix([[1.0]]))
        sent = state_of(matrix([[1.0]]), matrix([[9.0]]))
        late = update(sent, staleness=3, discount=0.5)
        ProductMixing(1.0, weighting("polynomial", 0.5)).merge(state, late)
        assert product(state).item() == pytest.approx(0.75 * 1 + 0.25 * 9)

    @pytest.mark.parametrize("kind", [Mixing, ProductMixing])
    def test_no_weighting_takes_it_beyond_the_update(self, kind):
        state, before = random_state(0), random_state(0)
        with pytest.raises(ConfigError, match=r"alpha=1.5 must be in \[0, 1\]"):
            kind(0.5, lambda update: 3.0).merge(state, update(random_state(1)))
        assert all(torch.equal(state[name], before[name]) for name in state)

    def test_half_precision(self):
        state = random_state(0, dtype=torch.float16)
        ProductMixing(0.5).merge(state, update(random_state(1, dtype=torch.float16)))
        assert state[A].dtype == torch.float16
        assert product(state).isfinite().all()


class TestBuffered:
    def test_golden(self):
        """1 + ((2*3 - 1*1) + (-1*1 - 1*1)) / 2 = 2.5; the head: 0 + (4 + 2) / 2."""
        state = state_of(matrix([[1.0]]), matrix([[1.0]]))
        base = state_of(matrix([[1.0]]), matrix([[1.0]]))
        aggregator = ProductBuffered(2)
        first = state_of(matrix([[3.0]]), matrix([[2.0]]), head=4.0)
        second = state_of(matrix([[1.0]]), matrix([[-1.0]]), head=2.0)
        assert not aggregator.merge(state, update(first, base))
        assert product(state).item() == 1
        assert aggregator.merge(state, update(second, base))
        assert product(state).item() == pytest.approx(2.5)
        assert state[HEAD].tolist() == [3.0, 3.0]

    @settings(max_examples=15, deadline=None)
    @given(seed=SEEDS, kept=st.lists(KEPT, min_size=2, max_size=3))
    def test_it_is_the_dense_mean_cut_to_the_rank(self, seed, kept):
        """With stale bases, of other factors than the server has by now."""
        state = random_state(seed)
        expected = product(state)
        aggregator = ProductBuffered(len(kept), server_lr=0.7)
        for number, each in enumerate(kept):
            base = part(random_state(seed + 10 + number), each)
            sent = part(random_state(seed + 20 + number), each)
            expected = expected + 0.7 * (product(sent) - product(base)) / len(kept)
            aggregator.merge(state, update(sent, base, indices=components(each)))
        torch.testing.assert_close(
            product(state), best(expected, 3), rtol=1e-7, atol=1e-7
        )

    def test_examples(self):
        state = state_of(matrix([[1.0]]), matrix([[0.0]]))
        base = state_of(matrix([[1.0]]), matrix([[0.0]]))
        aggregator = ProductBuffered(2, normaliser="examples")
        for b, count in ((4.0, 1), (8.0, 3)):
            sent = state_of(matrix([[1.0]]), matrix([[b]]))
            aggregator.merge(state, update(sent, base, num_examples=count))
        assert product(state).item() == pytest.approx(7.0)

    def test_counts_average_a_component_over_those_who_trained_it(self):
        """Component 0 moves by the mean of 2 and 4, component 1 by 6."""
        eye = matrix([[1.0, 0.0], [0.0, 1.0]])
        products = {}
        for normaliser in ("size", "counts"):
            state, base = state_of(eye, 0 * eye), state_of(eye, 0 * eye)
            aggregator = ProductBuffered(2, normaliser=normaliser)
            both = state_of(eye, torch.diag(matrix([2.0, 6.0])))
            one = part(state_of(eye, torch.diag(matrix([4.0, 0.0]))), [0])
            aggregator.merge(state, update(both, base))
            aggregator.merge(
                state, update(one, part(base, [0]), indices=components([0]))
            )
            products[normaliser] = product(state)
        torch.testing.assert_close(products["counts"], torch.diag(matrix([3.0, 6.0])))
        torch.testing.assert_close(products["size"], torch.diag(matrix([3.0, 3.0])))

    def test_the_plain_one_has_the_same_normaliser(self):
        """Rows of A and columns of B are averaged over those who trained them."""
        eye = matrix([[1.0, 0.0], [0.0, 1.0]])
        state, base = state_of(eye, 0 * eye), state_of(eye, 0 * eye)
        plain = Buffered(2, combine=combiner("mean", 2, normaliser="counts"))
        both = state_of(eye, torch.diag(matrix([2.0, 6.0])))
        one = part(state_of(eye, torch.diag(matrix([4.0, 0.0]))), [0])
        plain.merge(state, update(both, base))
        plain.merge(state, update(one, part(base, [0]), indices=components([0])))
        assert product(state).tolist() == [[3.0, 0.0], [0.0, 6.0]]

    def test_one_update_on_what_was_sent_is_mixing_in_full(self):
        buffered, mixed, sent = random_state(0), random_state(0), random_state(1)
        ProductBuffered(1).merge(buffered, update(sent, random_state(0)))
        ProductMixing(1.0).merge(mixed, update(sent))
        torch.testing.assert_close(product(buffered), product(mixed))

    def test_left_out_adapters_keep_every_bit(self):
        state, before = random_state(0), random_state(0)
        empty = part(state, [])
        indices = {A: {0: torch.arange(0)}, B: {1: torch.arange(0)}}
        ProductBuffered(1).merge(
            state, update(empty, part(before, []), indices=indices)
        )
        assert torch.equal(state[A], before[A])

    def test_it_goes_on_from_its_state(self):
        straight, resumed = random_state(0), random_state(0)
        first = update(part(random_state(1), [1]), part(random_state(2), [1]))
        first = update(first.arrays, first.base, indices=components([1]))
        second = update(random_state(3), random_state(0))
        one, two = ProductBuffered(2), ProductBuffered(2)
        one.merge(straight, first)
        two.load_state_dict(one.state_dict())
        one.merge(straight, second)
        assert two.merge(resumed, second)
        assert all(torch.equal(straight[name], resumed[name]) for name in straight)

    def test_it_waits_and_flushes(self):
        state = random_state(0)
        aggregator = ProductBuffered(4, waits=True)
        assert aggregator.waits_for == 4
        assert not aggregator.flush(state)
        aggregator.merge(state, update(random_state(1), random_state(0)))
        assert aggregator.flush(state)
        torch.testing.assert_close(product(state), product(random_state(1)))

    def test_clipped(self):
        state, base = random_state(0), random_state(0)
        sent = {name: tensor + 100 for name, tensor in base.items()}
        Clipped(ProductBuffered(1), 1e-6).merge(state, update(sent, base))
        torch.testing.assert_close(product(state), product(base), atol=1e-4, rtol=0)


class TestRefusals:
    @pytest.mark.parametrize(
        "indices",
        [
            {A: {0: torch.tensor([0])}},
            {A: {0: torch.tensor([0])}, B: {1: torch.tensor([1])}},
            {A: {1: torch.tensor([0])}},
        ],
    )
    @pytest.mark.parametrize("aggregator", [ProductMixing(), ProductBuffered(1)])
    def test_factors_that_are_cut_otherwise(self, indices, aggregator):
        state, before = random_state(0), random_state(0)
        arrays = dict(random_state(1))
        for name, dims in indices.items():
            for dim, kept in dims.items():
                arrays[name] = arrays[name].index_select(dim, kept)
        with pytest.raises(ShapeError, match="make the plan with lora_plan"):
            aggregator.merge(state, update(arrays, arrays, indices=indices))
        assert all(torch.equal(state[name], before[name]) for name in state)

    @pytest.mark.parametrize("aggregator", [ProductMixing(), ProductBuffered(1)])
    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("fc.weight", "no adapters"),
            ("fc.lora_B.weight", "lora_A and lora_B, which both train"),
        ],
    )
    def test_models_without_adapters(self, aggregator, name, why):
        state = {name: torch.zeros(2, 2)}
        with pytest.raises(ConfigError, match=why):
            aggregator.extra(state)  # before the first task is sent
        with pytest.raises(ConfigError, match=why):
            aggregator.merge(state, update(state, state))

    @pytest.mark.parametrize("aggregator", [ProductMixing(), ProductBuffered(1)])
    def test_complex_factors(self, aggregator):
        state = {n: tensor.to(torch.complex64) for n, tensor in random_state(0).items()}
        with pytest.raises(UnsupportedModelError, match="factors of q are complex"):
            aggregator.extra(state)

    def test_options(self):
        with pytest.raises(ConfigError, match="alpha"):
            ProductMixing(1.5)
        with pytest.raises(ConfigError, match="normaliser"):
            ProductBuffered(2, normaliser="ranks")
        with pytest.raises(ConfigError, match="buffer_size"):
            ProductBuffered(0)
