"""The mathematics of products: exact sums, and the best product of a rank."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flwr_asyncdrop.aggregation.products import Factors, stacked, truncated
from flwr_asyncdrop.submodel import find_adapters
from tests.nightly import examples

SEEDS = st.integers(0, 10_000)


def factors(seed, rank, outputs=5, inputs=6):
    generator = torch.Generator().manual_seed(seed)
    b = torch.randn(outputs, rank, generator=generator, dtype=torch.float64)
    a = torch.randn(rank, inputs, generator=generator, dtype=torch.float64)
    return Factors(b, a)


def best(dense, rank):
    """Return the nearest matrix of a rank: the dense way."""
    u, s, v = torch.linalg.svd(dense)
    return u[:, :rank] @ torch.diag(s[:rank]) @ v[:rank]


class TestStacking:
    @settings(max_examples=examples(25), deadline=None)
    @given(
        seed=SEEDS,
        ranks=st.lists(st.integers(0, 4), min_size=1, max_size=4),
        scale=st.floats(-2, 2),
    )
    def test_the_product_is_the_sum_of_products(self, seed, ranks, scale):
        parts = [factors(seed + n, rank) for n, rank in enumerate(ranks)]
        expected = sum(scale * part.b @ part.a for part in parts)
        found = stacked([part.scaled(scale) for part in parts]).product()
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)

    def test_mean_of_products_is_not_the_product_of_means(self):
        one, other = (torch.tensor([[x]], dtype=torch.float64) for x in (1.0, -1.0))
        parts = [Factors(one, one).scaled(0.5), Factors(other, other).scaled(0.5)]
        assert stacked(parts).product().item() == 1
        assert ((one + other) / 2 * (one + other) / 2).item() == 0


class TestTruncating:
    @settings(max_examples=examples(25), deadline=None)
    @given(seed=SEEDS, total=st.integers(1, 9), rank=st.integers(1, 8))
    def test_it_is_the_nearest_product_of_the_rank(self, seed, total, rank):
        found = truncated(factors(seed, total), factors(seed + 1, rank))
        assert found.b.shape == (5, rank)
        assert found.a.shape == (rank, 6)
        expected = best(factors(seed, total).product(), min(rank, 5))
        torch.testing.assert_close(found.product(), expected, rtol=1e-8, atol=1e-8)

    @settings(max_examples=examples(25), deadline=None)
    @given(seed=SEEDS, rank=st.integers(1, 5))
    def test_what_has_the_rank_is_exact_however_it_is_factored(self, seed, rank):
        total, like = factors(seed, rank), factors(seed + 1, rank)
        turn = torch.linalg.qr(factors(seed + 2, rank, rank, rank).product()).Q
        again = Factors(total.b @ turn, turn.T @ total.a)
        for each in (total, again):
            found = truncated(each, like)
            torch.testing.assert_close(found.product(), total.product())
        torch.testing.assert_close(truncated(again, like).a, found.a)

    def test_rows_are_at_right_angles_and_as_long_as_before(self):
        like = factors(1, 3)
        a = truncated(factors(0, 3), like).a
        square = float(like.a.square().sum()) / 3
        torch.testing.assert_close(a @ a.T, square * torch.eye(3).double())

    def test_components_go_on_from_where_they_were(self):
        like = factors(1, 3, 20, 30)
        like = truncated(like, like)
        near = Factors(like.b + 1e-3, like.a + 1e-3)
        found = truncated(near, like)
        assert float((found.a - like.a).abs().max()) < 0.02
        assert float((found.b - like.b).abs().max()) < 0.02

    def test_when_training_begins_every_component_keeps_its_row(self):
        like = factors(1, 3, 20, 30)
        zero = Factors(torch.zeros_like(like.b), like.a)
        found = truncated(zero, like)
        assert torch.equal(found.b, zero.b)
        span = found.a @ torch.linalg.pinv(like.a) @ like.a
        torch.testing.assert_close(span, found.a)
        assert torch.linalg.matrix_rank(found.a) == 3

    def test_nothing_at_all(self):
        nothing = Factors(torch.zeros(5, 2).double(), torch.zeros(2, 6).double())
        found = truncated(nothing, nothing)
        assert torch.equal(found.b, nothing.b)
        assert found.a.isfinite().all()

    def test_golden(self):
        """diag(3, 1) cut to rank 1, beside a row (2, 0): s = 2, so b = 3 / 2."""
        eye = torch.eye(2, dtype=torch.float64)
        like = Factors(eye[:, :1], 2 * eye[:1])
        found = truncated(
            Factors(torch.diag(torch.tensor([3.0, 1.0])).double(), eye), like
        )
        torch.testing.assert_close(found.a, 2 * eye[:1])
        torch.testing.assert_close(found.b, 1.5 * eye[:, :1])

    def test_the_number_of_threads_stays(self):
        before = torch.get_num_threads()
        truncated(factors(0, 3), factors(1, 3))
        assert torch.get_num_threads() == before


class TestLayouts:
    @pytest.mark.parametrize(
        ("shapes", "pairs"),
        [
            ({"c.lora_A.weight": (4, 3, 5, 5), "c.lora_B.weight": (8, 4, 1, 1)}, None),
            ({"e.lora_embedding_A": (4, 20), "e.lora_embedding_B": (6, 4)}, None),
            ({"down": (9, 4), "up": (4, 7)}, [("down", "up", 1, 0)]),
            ({"down": (4, 9), "gate": (4,)}, [("down", "gate", 0, 0)]),
            ({"gate": (4,), "up": (7, 4)}, [("gate", "up", 0, 1)]),
        ],
    )
    def test_there_and_back(self, shapes, pairs):
        state = {name: torch.randn(shape) for name, shape in shapes.items()}
        (adapter,) = find_adapters(shapes, pairs)
        found = Factors.of(state, adapter)
        assert found.a.shape[0] == found.b.shape[1] == 4
        empty = {name: torch.zeros(shape) for name, shape in shapes.items()}
        found.write_(empty, adapter)
        assert all(torch.equal(empty[name], state[name]) for name in state)

    def test_a_convolution_is_what_peft_adds_to_its_weight(self):
        a, b = torch.randn(4, 3, 5, 5), torch.randn(8, 4, 1, 1)
        state = {"c.lora_A.weight": a, "c.lora_B.weight": b}
        (adapter,) = find_adapters({n: tuple(t.shape) for n, t in state.items()})
        expected = torch.einsum("orxy,rikl->oikl", b, a)
        found = Factors.of(state, adapter).product().reshape(8, 3, 5, 5)
        torch.testing.assert_close(found.float(), expected)
