"""Mixing by hand, and the equivalences of Algorithms 1 and 2."""

import dataclasses

import pytest
import torch

from flwr_asyncdrop.aggregation import Aggregator, Mixing, Update, mix_, weighting
from flwr_asyncdrop.exceptions import ConfigError, ShapeError
from flwr_asyncdrop.masks import FullMask, RandomMask
from flwr_asyncdrop.submodel import extract
from tests.aggregation.two_layers import PLAN, random_state
from tests.masks.choosing import choose


def indices_of(policy):
    generator = torch.Generator().manual_seed(0)
    return PLAN.indices(choose(policy, PLAN.groups, None, 0, 1, generator))


def copy_of(state):
    return {name: tensor.clone() for name, tensor in state.items()}


class TestByHand:
    def test_algorithm_1(self):
        state = {"w": torch.tensor([0.0, 4.0, -8.0])}
        mix_(state, {"w": torch.tensor([4.0, 0.0, 8.0])}, {}, 0.25)
        assert state["w"].tolist() == [1.0, 3.0, -4.0]

    def test_algorithm_2(self):
        state = {"w": torch.tensor([0.0, 4.0, -8.0])}
        mask = {"w": {0: torch.tensor([0, 2])}}
        mix_(state, {"w": torch.tensor([4.0, 8.0])}, mask, 0.25)
        assert state["w"].tolist() == [1.0, 4.0, -4.0]

    def test_alpha_zero_keeps_the_model_and_one_replaces_it(self):
        for alpha, result in ((0, 2.0), (1, 6.0)):
            state = {"w": torch.tensor([2.0])}
            mix_(state, {"w": torch.tensor([6.0])}, {}, alpha)
            assert state["w"].item() == result

    def test_a_discount_is_a_factor_on_the_rate(self):
        state = {"w": torch.tensor([0.0, 4.0])}
        update = Update({"w": torch.tensor([8.0, 4.0])}, {}, 3, 1, discount=0.5)
        assert Mixing(0.5, weighting("polynomial", 0.5)).merge(state, update)
        assert state["w"].tolist() == [1.0, 4.0]  # 8 / 2 / 2 / 2


class TestEquivalences:
    @pytest.mark.parametrize("policy", [FullMask(), RandomMask(0.0)])
    @pytest.mark.parametrize("alpha", [0.3, 0.5, 1.0])
    def test_dropping_nothing_is_algorithm_1_bit_for_bit(self, policy, alpha):
        state, local = random_state(1), random_state(2)
        indices = indices_of(policy)
        masked, plain = copy_of(state), copy_of(state)
        mix_(masked, extract(local, indices), indices, alpha)
        for name, tensor in plain.items():
            tensor.lerp_(local[name], alpha)
        assert all(torch.equal(masked[name], plain[name]) for name in state)

    def test_masked_mixing_is_algorithm_2_as_written(self):
        state, local, alpha = random_state(1), random_state(2), 0.3
        indices = indices_of(RandomMask(0.5))
        mixed = copy_of(state)
        mix_(mixed, extract(local, indices), indices, alpha)
        for name, before in state.items():
            mask = torch.ones_like(before)
            for dim, kept in indices[name].items():
                along = torch.zeros(before.shape[dim]).index_fill(0, kept, 1.0)
                mask *= along.view(-1, *[1] * (before.dim() - dim - 1))
            assert 0 < mask.mean() < 1
            moved = (1 - alpha) * before + alpha * local[name]
            expected = before * (1 - mask) + moved * mask
            torch.testing.assert_close(mixed[name], expected)
            assert torch.equal(mixed[name][mask == 0], before[mask == 0])


class TestMixing:
    def test_is_an_aggregator_that_always_changes_the_model(self):
        state, local = random_state(1), random_state(2)
        indices = indices_of(RandomMask(0.5))
        expected = copy_of(state)
        mix_(expected, extract(local, indices), indices, 0.3)
        aggregator = Mixing(0.3)
        assert isinstance(aggregator, Aggregator)
        assert aggregator.merge(state, Update(extract(local, indices), indices, 2, 10))
        assert all(torch.equal(state[name], expected[name]) for name in state)

    def test_goes_half_way_unless_told_otherwise(self):
        state = {"w": torch.tensor([2.0])}
        Mixing().merge(state, Update({"w": torch.tensor([6.0])}, {}, 0, 1))
        assert state["w"].item() == 4.0

    def test_an_update_cannot_be_changed(self):
        update = Update({}, {}, 0, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            update.staleness = 1


class TestRefusals:
    @pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
    def test_alpha_outside_its_range(self, alpha):
        with pytest.raises(ConfigError, match=f"alpha={alpha}"):
            Mixing(alpha)
        state = {"w": torch.tensor([2.0])}
        with pytest.raises(ConfigError, match=f"alpha={alpha}"):
            mix_(state, {"w": torch.tensor([6.0])}, {}, alpha)
        assert state["w"].item() == 2.0

    def test_an_update_of_another_shape(self):
        state = {"w": torch.tensor([2.0])}
        with pytest.raises(ShapeError, match="w has"):
            Mixing().merge(state, Update({"w": torch.zeros(2)}, {}, 0, 1))
        assert state["w"].item() == 2.0
